"""What a report leaves out: some sixty planted secrets of every kind, and their legal twins, which stay."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest
import reports
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3diag.case import Case, Given
from eagle3diag.faults import detect
from eagle3diag.findings import TEXT, Evidence
from eagle3diag.report.private import KINDS
from eagle3diag.report.redaction import REASONS, clean, cleaned, removed


@dataclass(frozen=True)
class Said:
    """A measurement that holds words of a prompt."""

    name: str
    prompt: str = field(metadata=TEXT)
    tokens: tuple[str, ...] = field(metadata=TEXT)
    nothing: str = field(metadata=TEXT)


# No planted key is one: each is put together here, so that no scanner of the repository takes it for a leak.
OPENAI = "sk-" + "proj-Ab3dEf6hIj9lMn2pQr5t"
HF = "hf" + "_AbcDefGhiJklMnoPqrStuVwx"
AWS = "AK" + "IAIOSFODNN7EXAMPLE"
AWS_SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCY" + "EXAMPLEKEY"
GCP = "AI" + "zaSyA1234567890abcdefghijklmnopqrstuv"
GITHUB = "gh" + "p_abcdefghijklmnopqrstuvwxyz0123456789"
GITHUB_FINE = "github" + "_pat_11ABCDEFG0abcdefghijklmnop"
GITLAB = "gl" + "pat-abcdefghij_KLMNOPQRS"
SLACK = "xo" + "xb-123456789012-abcdefGHIJKL"
JWT = "ey" + "JhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefg_123"
PEM = "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIEowIBAAKCAQEA7\nq1w2e3r4\n-----END RSA PRIVATE " + "KEY-----"
GUID = "GPU-1a2b3c4d-5e6f-7a8b-9c0d-1e2f3a4b5c6d"

SECRETS: list[tuple[str, str, tuple[str, ...]]] = [  # kind, where it stands, what must be gone
    ("key", f"using {OPENAI} for the judge", (OPENAI,)),
    *(
        ("key", text.replace("KEY", "Zq8xV2mKp7"), ("Zq8xV2mKp7",))
        for text in (
            "--api-key first KEY --port 1", "--api-key=first KEY", "--api-key 'first' 'KEY'", "mysql -u ada -pKEY db", "sshpass -pKEY ssh x",
            "redis-cli -h x -a KEY", "REDISCLI_AUTH=KEY", "pass: KEY", "PIN=KEY", '"token": "KEY"', "'token': 'KEY'", "set -x HF_TOKEN KEY",
            "wget --header='PRIVATE-TOKEN: KEY' x", "- name: HF_TOKEN\n  value: KEY", '{"name": "HF_TOKEN", "value": "KEY"}', "smbclient -U ada%KEY //x",
            "PGPASSWORD=KEY psql", "MYSQL_PWD=KEY mysql", "kubectl create secret generic x --from-literal=token=KEY", "curl -H 'X-Api-Key: KEY' x",
            "curl -H 'X-Vault-Token: KEY'", "curl -H 'Ocp-Apim-Subscription-Key: KEY'", "_auth=KEY", '"auths": {"x": {"auth": "KEY"}}', "otp=KEY",
            "Server=db;User Id=sa;Pwd=KEY;", "curl --cookie 'sid=KEY' x", "curl -b sid=KEY x", "az login --service-principal -u app -p KEY -t t",
            "mongo -p KEY", "ldapsearch -w KEY", "unzip -P KEY x.zip", "7z x -pKEY a.7z", "openssl enc -aes-256-cbc -k KEY -in x",
            "rclone --sftp-pass KEY", "wandb login --relogin KEY", "aws configure set aws_secret_access_key KEY", "huggingface-cli login <<< KEY",
            "echo KEY | docker login --password-stdin", "echo 'KEY' | huggingface-cli login", "gpg --passphrase-fd 0 <<< KEY", "client-key-data: KEY",
            "echo KEY | sudo -S ls", "vault kv put secret/x value=KEY", "set -gx hf_token KEY",
            "HF_TOKEN=$'KEY'", "HF_TOKEN=${X:-KEY}", "HF_TOKEN=$(echo KEY)", "os.environ['HF_TOKEN'] = 'KEY'", "wandb.login(key='KEY')", "login('KEY')",
            "Incorrect API key provided: KEY", "Invalid token: KEY", "api key: KEY", "\u2014api-key KEY",
        )
    ),
    *(
        ("key", before + "Zq8xV2mKp7Ltw3RbZq8xV2mK", ("Zq8xV2mKp7",))
        for before in (
            "hf_" "oauth_", "hf_" "jwt_", "gl" "sa_", "gl" "c_", "gl" "ptt-", "dckr" "_pat_", "doo" "_v1_", "dor" "_v1_", "rp" "a_", "tgp" "_v1_", "cs" "k-",
            "jin" "a_", "tvl" "y-", "pcs" "k_", "nt" "n_", "fig" "d_", "sntr" "ys_", "shp" "ss_", "ATA" "TT3", "pat" "-na1-", "cfu" "t_", "sk" "_org_",
            "https://api.telegram.org/bot98765:", "https://hooks.zapier.com/hooks/catch/98/", "https://ntfy.sh/", "ey" "JhbGciOiJkaXIifQ..abcdefgh.",
        )
    ),
    ("private key", "-----BEGIN PGP " "MESSAGE-----\nZq8xV2mKp7\n-----END PGP MESSAGE-----", ("Zq8xV2mKp7",)),
    ("private key", "PuTTY-User-" "Key-File-3: ssh-ed25519\nPrivate-Lines: 1\nZq8xV2mKp7\nPrivate-MAC: Zq8xV2mKp7", ("Zq8xV2mKp7",)),
    ("login", "curl -uada:Zq8xV2mKp7 x", ("Zq8xV2mKp7",)),
    ("key", f"huggingface-cli login --token {HF}", (HF,)),
    ("key", f"id {AWS} seen", (AWS,)),
    ("key", f"aws_secret_access_key = {AWS_SECRET}", (AWS_SECRET, "wJalr")),
    ("key", f"AWS_SECRET_ACCESS_KEY={AWS_SECRET} python -m x", (AWS_SECRET,)),
    ("key", f"maps {GCP}", (GCP,)),
    ("key", f"git clone with {GITHUB}", (GITHUB,)),
    ("key", f"{GITHUB_FINE}", (GITHUB_FINE,)),
    ("key", f"{GITLAB}", (GITLAB,)),
    ("key", f"{SLACK}", (SLACK,)),
    ("key", "post to https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXX", ("XXXXXXXX", "B0000")),
    ("key", f"cookie jar {JWT}", (JWT, "eyJzdWIi")),
    ("key", "Authorization: Bearer abc.def-ghi_jkl", ("abc.def",)),
    ("key", "curl -H 'Authorization: Basic dXNlcjpwYXNzd29yZA=='", ("dXNlcjpw",)),
    ("key", "Cookie: session=planted1; other=planted2", ("planted1", "planted2")),
    ("key", "vllm serve m --api-key planted123", ("planted123",)),
    ("key", "vllm serve m --api-key=planted123 --port 80", ("planted123",)),
    ("key", "sglang serve --admin-api-key 'planted zq8y'", ("planted", "zq8y")),
    ("key", "server_args=ServerArgs(api_key='planted123', admin_api_key=None)", ("planted123",)),
    ("key", '{"api_key": "planted123", "x": 1}', ("planted123",)),
    ("key", "HF_TOKEN=planted123 sglang serve", ("planted123",)),
    ("key", "export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567", ("0123456789abcdef",)),
    ("key", "password: planted123", ("planted123",)),
    ("key", "DB_PASSWORD='planted123'", ("planted123",)),
    ("key", "client_secret=planted123", ("planted123",)),
    ("key", "DefaultEndpointsProtocol=https;AccountKey=planted123==;", ("planted123",)),
    ("key", "here: " + "hv" + "s.planted1planted2planted3", ("planted1",)),
    ("key", "here: " + "ts" + "key-auth-planted1planted2", ("planted1",)),
    ("key", "here: " + "xa" + "i-planted1planted2planted3", ("planted1",)),
    ("key", "here: " + "lsv" + "2_pt_planted1planted2planted3", ("planted1",)),
    ("key", "post to https://discord.com/api/webhooks/123/planted1-planted2", ("planted",)),
    ("key", "Authorization: Digest username='alice', response='planted123'", ("planted123",)),
    ("key", "Authorization: AWS4-HMAC-SHA256 Credential=planted1/2026, Signature=planted2", ("planted",)),
    ("key", '{"authorization": "planted123planted"}', ("planted123",)),
    ("key", "--header=Authorization:Bearer\\ planted123", ("planted123",)),
    ("key", "--API-KEY planted1 -api-key planted2 --apikey planted3", ("planted",)),
    ("key", "--api-key\\\n planted123", ("planted123",)),
    ("key", '{\\"api_key\\": \\"planted123\\"}', ("planted123",)),
    ("key", "api_key=['planted1', 'planted2']", ("planted",)),
    ("key", "x?api_key%3Dplanted123", ("planted123",)),
    ("key", "docker run -eHF_TOKEN=planted123 image", ("planted123",)),
    ("key", "ENV HF_TOKEN planted1planted2planted3", ("planted",)),
    ("key", "TOKEN=planted1 KEY=planted2 PASS=planted3 JSESSIONID=planted4", ("planted",)),
    ("key", "GET /x?token=planted1&sig=planted2", ("planted",)),
    ("key", "docker login -u alice -p planted123", ("planted123",)),
    ("key", "sshpass -p planted123 ssh x", ("planted123",)),
    ("key", "wandb login planted123", ("planted123",)),
    ("private key", PEM, ("MIIEow", "q1w2e3r4")),
    ("ssh key", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPlanted alice@laptop", ("AAAAC3", "alice", "laptop")),
    ("login", "https://alice:planted123@github.com/x/y", ("alice", "planted123")),
    ("login", "HTTPS_PROXY=http://bob:planted123@proxy.corp:3128", ("bob", "planted123", "proxy.corp")),
    ("login", "https://planted123@github.com/x.git", ("planted123",)),
    ("login", "redis://:planted123@localhost:6379", ("planted123",)),
    ("login", "curl -u alice:planted123 http://localhost", ("alice", "planted123")),
    ("login", "machine x login alice password planted123", ("alice", "planted123")),
    ("signature", "https://b.s3.amazonaws.com/k/x.pt?X-Amz-Credential=planted1&X-Amz-Signature=planted2", ("planted", "amazonaws")),
    ("signature", "https://huggingface.co/x?Expires=1&Signature=planted1&Key-Pair-Id=planted2", ("planted",)),
    ("host", "http://gpu-node-a:30000/v1", ("gpu-node-a",)),
    ("host", "grpc://inference.team.example-corp.com:9000", ("inference", "example-corp")),
    ("host", "s3://acme-models/draft", ("acme-models",)),
    ("host", "gpu17.cluster.internal says hello", ("gpu17", "cluster.internal")),
    ("host", "pulled registry.acme-corp.com:5000/sglang:v0.5.23", ("acme-corp",)),
    ("host", "--dist-init-addr planted0:5000", ("planted0",)),
    ("host", "MASTER_ADDR=planted0 torchrun", ("planted0",)),
    ("host", "--host planted0 --port 30000", ("planted0",)),
    ("host", "ServerArgs(host='planted0', port=1)", ("planted0",)),
    ("host", "hostname: planted0", ("planted0",)),
    ("host", "SLURM_JOB_NODELIST=planted[01-04]", ("planted",)),
    ("host", "on ip-10-0-12-7 and dgx-a100-03", ("10-0-12-7", "a100-03")),
    ("host", "see wiki.acme-corp.de, acme.io or alices-mbp.local", ("acme", "alices")),
    ("host", "api.acme.dev answers", ("acme",)),
    ("mail address", "asked alice.b+x@mail.acme-corp.co.uk", ("alice", "acme-corp")),
    ("login", "ssh alice@planted0 nvidia-smi", ("alice", "planted0")),
    ("login", "alice@planted0:~/x$ ls", ("alice", "planted0")),
    ("user", "USER=alice LOGNAME=alice x", ("alice",)),
    ("user", "uid=1000(alice) gid=1000", ("alice",)),
    ("address", "listening on 10.12.0.7:30000", ("10.12.0.7",)),
    ("address", "--host 192.168.1.20", ("192.168",)),
    ("address", "from 203.0.113.77.", ("203.0.113",)),
    ("address", "at 2001:db8:85a3::8a2e:370:7334 and fe80::1ff:fe23:4567:890a%eth0", ("8a2e", "fe23")),
    ("address", "[2001:db8:1:2:3:4:5:6]:30000", ("2001:db8",)),
    ("hardware address", "ether 3c:52:82:aa:bb:cc", ("3c:52",)),
    ("hardware address", f"device {GUID}", (GUID,)),
    ("host", r"\\fileserver\models\draft", ("fileserver",)),
    ("host", r"'\\\\fileserver\\models\\draft'", ("fileserver",)),
    ("home folder", "/home/alice/models/draft", ("alice", "/home")),
    ("home folder", "/mnt/nfs/home/alice/x.pt", ("alice", "nfs")),
    ("home folder", "/Users/alice/Library", ("alice",)),
    ("home folder", "/home/alice", ("alice",)),
    ("home folder", "/root/.cache/huggingface", ("root",)),
    ("home folder", r"C:\Users\Alice Smith\draft", ("Alice", "Smith")),
    ("home folder", r'"C:\\Users\\alice\\draft"', ("alice",)),
    ("home folder", "~alice/models", ("alice",)),
    ("home folder", "path=%2Fhome%2Falice%2Fx and C%3A%5CUsers%5Calice", ("alice",)),
]  # fmt: skip

TWINS = [
    "--tokenizer /models/T --served-model-name a1b2c3d4e5",
    "token ids 1, 2, 3 and token: 45",
    "pass: 3, first pass: the fc, pass: fc is skipped",
    '"eos_token": "</s>", \'bos_token\': \'<s>\', "token": "the"',
    "docker run -p 30000:30000 x, psql -p 5432, mkdir -p out, ssh -p 22",
    "--api-key $KEY --port 3",
    "--api-key ${KEY} --model Llama-3.1-8B",
    "0.5.5.post3",
    "sglang==0.5.23",
    "vllm>=0.9.0.1",
    "nvidia-cublas-cu12==12.8.4.1",
    "libcublas.so.12.8.4.1",
    "driver 570.124.6.10",
    "sglang 0.5.10.1 on CUDA 12.8.0.38",
    "layers.0.self_attn.q_proj.weight",
    "draft_layers.0.mlp.up_proj.weight, midlayer.hidden_norm.weight",
    "model-00001-of-00004.safetensors",
    "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --speculative-algorithm EAGLE3",
    "--speculative-num-draft-tokens 5 --max-total-tokens 4096 --speculative-token-map map.pt",
    "--host 0.0.0.0 --port 30000",
    "http://localhost:30000/v1 and http://127.0.0.1:30000",
    "https://github.com/sgl-project/sglang/issues/123",
    "https://huggingface.co/yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
    "config hash 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "lmsysorg/sglang@sha256:9f86d081884c",
    "FM-01, FM-05 and H8; FM-77/FM-25",
    "ServerArgs(api_key=None, admin_api_key=None, host='127.0.0.1', speculative_num_steps=3)",
    '"pad_token_id": 0, "bos_token": "<s>", "eos_token": "</s>"',
    "HF_TOKEN=$HF_TOKEN python x.py",
    "accept len: 1.00, accept rate: 0.20, cuda graph: True, gen throughput (token/s): 12.3",
    "[2026-01-02 03:04:05 TP0] Decode batch, #running-req: 1, #token: 512",
    "at::Tensor c10::Half std::vector<int> torch.float8_e4m3fn",
    "d2t[32000] int64, t2d[128256] bool; [576, 1728]",
    "vllm.entrypoints.openai.api_server",
    "/models/draft and ./out/train and data_samples/live/eagle3",
    "the token 'home' at position 12, keys of layer 3, password",
    "1.04 [1.02, 1.05] over 454 rounds; 12:30:45",
    "lm_head.weight -> model.lm_head.weight @ fc",
    "trained at boundaries 2, 15, 27; rms_norm_eps 1e-05; rope_theta=500000.0",
    "hidden_states[:, -1] * 3 // 2",
    "0.5.0.dev, 1.0.dev0, config.prod.json, blocks.0.se, logger.info('x'), notes.app",
    "docker run -u 1000:1000 image; python -u x.py; ssh://git@github.com/x/y; #token: 512, token=None, num_tokens=5",
    "sorted(x, key=len), --speculative-token-map map.pt, keys=3, --kv-cache-dtype auto, passes=2",
    "mkdir -p out, zip -r x.zip y, openssl version, echo done | tee x, two-pass: yes, author: x, curl -b cookies.txt x",
    "--eos-token </s>",
    "EOS_TOKEN=</s>",
    "--mask-token [MASK]",
    "--draft-token map.pt",
    "--sort-key accept",
    "SGLANG_ATTN_KEY=fa3",
    "SPECIAL_TOKEN=<|im_end|>",
    "model.layers.0.co",
    "/etc/passwd: not a file of tensors",
    "--key q_proj",
    "key_value_heads: 8, num_key_value_heads=2, key: value",
    'parser.add_argument("--api-key", metavar="KEY", help="x")',
    "`--api-key`, `HF_TOKEN`, `--visualize-per-token`, `--output-format text`",
    "secretKeyRef:\n  name: hf-secret\n  key: token\n",
    '{"valueFrom": {"secretKeyRef": {"name": "hf-secret", "key": "hf-token"}}}',
    "keys (api_key, admin_api_key) and --api-key, or EAGLE3DIAG_API_KEY",
]


@pytest.mark.parametrize(("kind", "text", "gone"), SECRETS, ids=range(len(SECRETS)))
def test_planted_secrets_are_gone(kind: str, text: str, gone: tuple[str, ...]) -> None:
    """Each secret is removed wherever it stands in a line, counted under its kind, and cleaning again changes nothing."""
    for line in (text, f"{text} end", f"start {text}", f"({text})"):
        shown = clean(line)

        assert not [part for part in gone if part in shown], shown
        assert kind in removed(shown), (shown, removed(shown))
        assert clean(shown) == shown


@pytest.mark.parametrize("text", TWINS, ids=range(len(TWINS)))
def test_legal_twins_stay(text: str) -> None:
    """Versions, names, flags, hashes and numbers that look like secrets are what a report is about."""
    assert clean(text) == text
    assert removed(text) == {}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("bash -c 'HF_TOKEN=abc12345 vllm serve m'", "bash -c 'HF_TOKEN=(key removed) vllm serve m'"),
        ('["--api-key", "abc12345", "--port", "80"]', '["--api-key", (key removed), "--port", "80"]'),
        ("ServerArgs(api_key=abc12345,port=80)", "ServerArgs(api_key=(key removed),port=80)"),
        ('{"api_key": "abc12345", "port": 80}', '{"api_key": (key removed), "port": 80}'),
        ("api_key: |\n  abc12345\n  def\nport: 80", "api_key: (key removed)port: 80"),
        ("pass `--api-key abc12345`, then `--port 80`", "pass `--api-key (key removed)`, then `--port 80`"),
        ("curl -u ada:abc12345 localhost", "curl -u (login removed) localhost"),
        ("https://ada:a@b12345@example.com/x", "https://(login removed)@example.com/x"),
    ],
)
def test_what_stands_around_a_key_stays(text: str, shown: str) -> None:
    """The words before and behind it are what a diagnosis is about."""
    assert clean(text) == shown


def test_names_say_what_their_values_are() -> None:
    """In a mapping or in evidence the secret stands apart from the name that gives it away."""
    launch = {"api-key": "planted1", "host": "planted2", "port": "30000", "hf_token": "$HF_TOKEN", "speculative-token-map": "map.pt"}
    evidence = (Evidence("--api-key", "planted3"), Evidence("--host", "planted4"), Evidence("--speculative-algorithm", "EAGLE"))
    shown = cleaned({"launch": launch, "evidence": evidence})

    assert "planted" not in repr(shown)
    assert shown["launch"] == launch | {"api-key": "(key removed)", "host": "(host removed)"}
    assert shown["evidence"][2] == evidence[2]
    assert removed(shown) == {"host": 2, "key": 2}


def test_text_of_prompts_stays_only_when_asked_for() -> None:
    """A field that is marked as text is left out, in one string or in many; its empty values stay what they are."""
    said = Said("r0", "tell me about my illness", ("take", "two"), "")

    assert cleaned(said) == Said("r0", "(text removed)", ("(text removed)", "(text removed)"), "")
    assert cleaned(said, private=True) == said
    assert removed(cleaned(said)) == {"text": 3}


def test_private_keeps_all_but_keys() -> None:
    """What is asked for with ``include_text`` comes with paths, names and hosts, and still without what opens doors."""
    for kind, text, gone in SECRETS:
        shown = clean(text, private=True)
        always = {k.name for k in KINDS if k.always}
        if kind in always and "@planted0" not in text:
            assert not [part for part in gone if part in shown and "host" not in removed(clean(shown))], shown
        elif kind not in always:
            assert shown == text


@pytest.mark.parametrize("version", ["1.2.3.4", "0.5.5.post3", "v0.9.0.1", "0.5.23+cu128"])
def test_a_version_is_known_by_its_field(version: str) -> None:
    """Four numbers under a name that ends in ``version`` are a version."""
    assert cleaned({"engine_version": version}) == {"engine_version": version}


UNKNOWN = {
    "$OPTS": "$OPTS", "${ARGS[@]}": "$ARGS", "$@": "$@", "$(EXTRA)": "$(EXTRA)", "${FLAGS:+--x KEY}": "$FLAGS",
    "$(vault read KEY)": "$(vault ...)", "`/usr/bin/vault read KEY`": "`vault ...`",
    "$(curl -H 'X-Unheard-Of: KEY' http://localhost)": "$(curl ...)", "$(sh -c 'echo KEY | x')": "$(sh ...)", "$(KEYKEY)": "$(...)",
    "$( <KEY )": "$(...)",
}  # fmt: skip


@pytest.mark.parametrize(("word", "shown"), UNKNOWN.items(), ids=range(len(UNKNOWN)))
def test_what_the_shell_fills_in_is_named_by_its_name_alone(word: str, shown: str) -> None:
    """C0 says which variable or program it cannot see through, and nothing of its arguments or of what stands in for it, on request too."""
    word = word.replace("KEY", "Zq8xV2mKp7Lt")
    found = detect(Case(Given(launch=f"sglang serve --model-path T --speculative-algorithm EAGLE3 {word}")))
    titles = [f.title for f in found if f.title.startswith("cannot tell what")]

    assert [t.removeprefix("cannot tell what ").removeprefix("these hold: ").removesuffix(" holds") for t in titles] == [shown]
    assert "Zq8" not in repr(found)


BARE = "_-.+/=~%:@!?*^"  # what stands in a word of a shell beside letters and digits
HERE = BARE + " ,;&|(){}[]<>#$"  # and in quotes of either kind
CARRIERS: dict[str, tuple[str, ...]] = {
    BARE: (
        "HF_TOKEN=KEY vllm serve m",
        "env A=b HF_TOKEN=KEY x",
        "export HF_TOKEN=a,KEY",
        "HF_TOKEN=\"a\"'KEY'",
        "HF_TOKEN='a'KEY",
        "HF_TOKEN=a'KEY'",
        'HF_TOKEN=a"KEY"b',
        "--api-key={KEY}",
        "--api-key KEY",
        "--api-key a,KEY",
        "vllm serve m --api-key\\\n  KEY --port 1",
        "args:\n- --api-key\n- KEY\n",
        "- --api-key=KEY\n- --port",
        "args: [--api-key, KEY]",
        "mysql -u a -pKEY db",
        "mysql -p'KEY' db",
        "sshpass -p KEY ssh x",
        "docker login -u a -p KEY r",
        "curl -u ada:KEY http://localhost",
        "curl -sSu ada:KEY x",
        "curl --user ada:KEY x",
        "api_key: KEY",
        "token:\n  a: 1\nhf_token:\n  KEY\n",
        "$env:HF_TOKEN = KEY",
        "set HF_TOKEN=KEY",
        "setx HF_TOKEN KEY",
        "setenv HF_TOKEN KEY",
        "read -r HF_TOKEN <<< KEY",
        "huggingface-cli login --token KEY",
        "ENV HF_TOKEN=KEY",
        "HF_TOKEN=${X:-KEY}",
        "HF_TOKEN=$(echo KEY)",
        "HF_TOKEN=`echo KEY`",
        "<password>KEY</password>",
        "- name: HF_TOKEN\n  value: KEY\n",
        "- value: KEY\n  name: HF_TOKEN\n",
        "{name: HF_TOKEN, value: KEY}",
        "ServerArgs(api_key=KEY, port=1)",
        "machine x\nlogin a\npassword KEY",
        "cat > .env <<EOF\nHF_TOKEN=KEY\nEOF",
        "curl -H 'X-Api-Key: KEY' x",
        "PGPASSWORD=KEY psql",
        "GET /v1?api_key=KEY",
    ),
    "_-.+=~%:!*@": (
        "https://ada:KEY@example.com/x",
        "redis://:KEY@localhost:6379/0",
        "pip install --index-url https://KEY@example.com/simple x",
    ),
    HERE: (
        "HF_TOKEN='KEY' x",
        'HF_TOKEN="KEY" x',
        "HF_TOKEN=$'KEY'",
        "HF_TOKEN=\"a\"'KEY' x",
        "--api-key 'KEY' --port 1",
        '--api-key="KEY"',
        '"api_key": "KEY"',
        "{'api_key': 'KEY', 'port': 1}",
        '{\\"api_key\\": \\"KEY\\"}',
        '["--api-key", "KEY"]',
        "['vllm', '--api-key', 'KEY']",
        "api_key: 'KEY' # ours",
        'password: "KEY"',
        "hf_token: |\n  KEY\nother: 1",
        "hf_token: >-\n  KEY\n  KEY\nother: 1",
        "curl -u 'ada:KEY' x",
        'curl --user "ada:KEY" x',
        "mysql -p'KEY' db",
        "os.environ['HF_TOKEN'] = 'KEY'",
        "os.environ.setdefault('HF_TOKEN', 'KEY')",
        'monkeypatch.setenv("HF_TOKEN", "KEY")',
        "login(token='KEY')",
        "$env:HF_TOKEN = 'KEY'",
        "docker login --password-stdin r <<EOF\nKEY\nEOF\nx",
        "read HF_TOKEN <<'E'\nKEY\nE\n",
        "echo 'KEY' | docker login --password-stdin",
        "- name: HF_TOKEN\n  value: 'KEY'",
        '{"value": "KEY", "name": "HF_TOKEN"}',
        "note: api_key='KEY",
    ),
    HERE.translate(dict.fromkeys(map(ord, ", "))): (
        'Environment="HF_TOKEN=KEY"',
        '["HF_TOKEN=KEY", "A=b"]',
        "docker run -e 'HF_TOKEN=KEY' x",
        "['--api-key=KEY', '--port']",
    ),
    HERE + "\n\t": ("HF_TOKEN='KEY' x", 'export HF_TOKEN="KEY"', '"private_key": "KEY"'),
    "+_=~-": ("--api-key first1234 KEY --port 1", "--api-key 'first1234' 'KEY'"),
}


@pytest.mark.parametrize(("signs", "carrier"), [(signs, carrier) for signs, many in CARRIERS.items() for carrier in many])
@given(data=st.data())
@settings(max_examples=8)
def test_no_part_of_a_random_key_survives_its_carrier(signs: str, carrier: str, data: st.DataObject) -> None:
    """However it is spelled and wherever it stands: no five characters of it are left, and cleaning again changes nothing."""
    inner = data.draw(st.text(st.sampled_from("abcXYZ0189" * 3 + signs), min_size=8, max_size=24))
    key = f"q7{inner}Zw4"
    shown = clean(carrier.replace("KEY", key))

    assert not [key[i : i + 5] for i in range(len(key) - 4) if key[i : i + 5] in shown], shown
    assert clean(shown) == shown


def test_numbers_and_kinds_are_kept() -> None:
    """Only strings are touched: numbers, None, booleans, tuples and types come out as they went in."""
    value = {"a": (1, 2.5, None, True), "b": [reports.comparison()]}

    assert cleaned(value) == value
    assert type(cleaned(value)["b"][0]) is type(value["b"][0])


@given(st.text())
def test_cleaning_is_stable(text: str) -> None:
    """Whatever the text, cleaning what was cleaned changes nothing."""
    assert clean(clean(text)) == clean(text)


@pytest.mark.parametrize(
    "piece",
    [
        "a.",
        "a-",
        "://",
        "-----BEGIN KEY-----",
        "@a.",
        "/home",
        "1.2.3.4 ",
        "a:",
        "\\\\a",
        "--a-token ",
        "_",
        "x=",
        "Cookie: ",
        "eyJaaaaaaaa.",
        "pass:",
        "token:",
        "x/passwd: ",
        "echo a |",
        "login ",
        "curl -b ",
    ],
)
def test_long_hostile_strings_take_no_time(piece: str) -> None:
    """A line of 60,000 characters made to send a pattern back and forth is read in a moment: no count but a wide bound on the clock."""
    start = time.process_time()
    clean(piece * (60_000 // len(piece)))

    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    "before", ["HF_TOKEN=", "value: ", "echo ", "--api-key ", "curl -u a:", "hf_token: |\n ", "HF_TOKEN=$(", 'HF_TOKEN="', "'HF_TOKEN="]
)
def test_a_long_value_takes_no_time(before: str) -> None:
    """One value of many pieces behind a name, which no pattern takes apart in a second way."""
    start = time.process_time()
    for piece in ("a", "a,", "a'b'", 'a"b', "{a}", "$(a", "a\\ ", "a\n "):
        clean(before + piece * (4_000 // len(piece)))

    assert time.process_time() - start < 2


def test_every_kind_is_planted_and_has_its_reason() -> None:
    """No kind without a test above, and none without a word about why."""
    assert {kind.name for kind in KINDS} == {kind for kind, _, _ in SECRETS}
    assert all(len(kind.reason) > 10 for kind in KINDS)
    assert set(REASONS) == {kind.name for kind in KINDS} | {"text"}

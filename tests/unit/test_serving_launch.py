"""Launch commands in every dress, and what they say: options a version lacks, combinations it refuses, drafts that are not drafted with."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from builders import LIGHT, small_target, write_draft
from hypothesis import given
from hypothesis import strategies as st
from small import small_draft

from eagle3diag.case import Case, Given
from eagle3diag.engines import combos_sglang, combos_vllm, options_sglang, options_vllm
from eagle3diag.engines.combos_vllm import method
from eagle3diag.engines.rules import Version
from eagle3diag.errors import BadArgument, InputError, UnreadableFile
from eagle3diag.faults import detect
from eagle3diag.findings import Finding, Severity
from eagle3diag.serving import parse_launch, read_launch
from eagle3diag.serving.settings import read_settings

SGLANG = "python -m sglang.launch_server --model-path T --speculative-algorithm EAGLE3 --speculative-draft-model-path D "
CHAIN = SGLANG + "--speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5 "
TREE = SGLANG + "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16 "


def vllm(**config: Any) -> str:
    config = {"method": "eagle3", "model": "D", "num_speculative_tokens": 3} | config
    return f"vllm serve T --speculative-config '{json.dumps({k: v for k, v in config.items() if v is not None})}'"


def found(command: str, engine: str | None = "sglang==0.5.23") -> list[Finding]:
    return [f for f in detect(Case(Given(launch=command, engine=engine))) if f.severity > Severity.NOTE]


# --- reading ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "$ CUDA_VISIBLE_DEVICES=0 sglang serve --model-path T --speculative-algorithm EAGLE3 --speculative-num-steps 4",
        "python3 -m sglang.launch_server --model T `\r\n --speculative-algo EAGLE3 `\r\n --speculative-num-steps=4",
        "python -m sglang.launch_server\n  --model-path T\n  --speculative-algorithm EAGLE3\n  --speculative-num-steps 4\n\ncurl localhost:30000",
        "python -m sglang.launch_server —model-path “T” –speculative-algorithm EAGLE3 --speculative_num_steps 4 # the one of Monday",
        '["python3", "-m", "sglang.launch_server", "--model-path", "T", "--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "4"]',
        "command:\n  - python3\n  - -m\n  - sglang.launch_server\nargs:\n  - --model-path=T\n  - '--speculative-algorithm'\n  - EAGLE3\n"
        "  - --speculative-num-steps\n  - '4'\n",
        "cd /x; (nohup python -m sglang.launch_server --model-path T --speculative-algorithm EAGLE3 --speculative-num-steps 4 2> log &)",
        "docker run --rm -e A=1 lmsysorg/sglang:v0.5.8 python3 -m sglang.launch_server --model-path T --speculative-algorithm EAGLE3 "
        "--speculative-num-steps 4 && echo done --speculative-num-steps 9",
    ],
    ids=["prompt", "PowerShell", "lost continuations", "typography", "JSON list", "pod", "subshell", "docker"],
)  # fmt: skip
def test_every_dress_of_a_command_is_seen_through(text: str) -> None:
    """The same options come out, and nothing of what follows."""
    seen = parse_launch(text)
    assert (seen.engine, seen.target_path, seen.algorithm, seen.steps) == ("sglang", "T", "EAGLE3", 4)


SERVE = "python3 -m sglang.launch_server --model-path T --speculative-algorithm EAGLE3 --speculative-draft-model-path D"
CONFIG = '{"method": "eagle3", "model": "D", "num_speculative_tokens": 3}'

SCRIPTS: dict[str, str] = {
    "a shell in a container": f'docker run --gpus all lmsysorg/sglang:v0.5.9 bash -lc "exec {SERVE}"',
    "quoted as a whole": f"'{SERVE}'",
    "another machine": f'ssh gpu "cd /srv && {SERVE} > log 2>&1 &"',
    "variables of its own": 'M=${1:-T}\nexport D="D"\nSPEC="--speculative-algorithm EAGLE3 --speculative-draft-model-path $D"\n'
    'exec python -m sglang.launch_server --model-path "$M" $SPEC \\\n  --tp 2\n',
    "an array": 'A=(\n  --model-path T  # the target\n  --speculative-algorithm EAGLE3\n)\nA+=(--speculative-draft-model-path "D")\n'
    'python3 -m sglang.launch_server "${A[@]}"',
    "a variable within JSON": f"""D=D; vllm serve T --speculative-config '{CONFIG.replace('"D"', chr(34) + "'$D'" + chr(34))}'""",
    "a function": 'serve() {\n  set -x\n  ' + SERVE + '\n}\nserve --port 1\n',
    "said before": f"echo 'starting vllm serve now'\n{SERVE}",
    "Dockerfile": "FROM lmsysorg/sglang:v0.5.9\nENV A=b\nCMD " + json.dumps(SERVE.split()),
    "Python": "Popen([sys.executable, " + json.dumps(SERVE.split()[1:])[1:] + ", env=env)",
    "systemd": f"[Service]\nEnvironment=A=b\nExecStart=/opt/bin/{SERVE}\nRestart=always\n",
    "Markdown": f"```bash\n{SERVE}\n```",
    "variable named like an engine": f"VLLM_USE_V1=1 docker run vllm/vllm-openai:v0.11.0 --model T --speculative-config '{CONFIG}'",
    "Compose, folded": "services:\n  s:\n    image: lmsysorg/sglang:v0.5.9\n    environment:\n      A: b\n    entrypoint: python3 -m sglang.launch_server\n"
    "    command: >\n      --model-path T\n      --speculative-algorithm EAGLE3\n      --speculative-draft-model-path D\n    ulimits: {}\n",
    "Compose, one line": "services:\n  db:\n    image: postgres\n    command: -c x=1\n  v:\n    environment:\n      - VLLM_X=1\n"
    f"    image: vllm/vllm-openai:v0.11.0\n    command: --model T --speculative-config '{CONFIG}'\n",
    "Compose, list": f"    image: vllm/vllm-openai:v0.11.0\n    command:\n      - --model\n      - T\n      - --speculative-config\n      - '{CONFIG}'\n"
    '    ports:\n      - "8000:8000"\n',
    "pod": 'spec:\n  containers:\n    - name: x\n      image: lmsysorg/sglang:v0.5.9\n      command: ["python3", "-m", "sglang.launch_server"]\n      args:\n'
    '        - "--model-path"\n        - $(MODEL)\n        - --speculative-algorithm=EAGLE3\n        - "--speculative-draft-model-path"\n'
    '        - "D"\n      env:\n        - name: MODEL\n          value: T\n        - name: K\n          valueFrom:\n            x: y\n',
    "pod, script": "    - image: vllm/vllm-openai:v0.11.0\n      command:\n      - /bin/sh\n      - -c\n      - |\n        vllm serve T -tp 2 \\\n"
    f"          --speculative-config '{CONFIG}'\n      env: []\n",
    "flow maps": "containers: [{name: x, image: 'vllm/vllm-openai:v0.11.0', args: [--model, T, --speculative-config, '" + CONFIG + "']}]\n",
    "aliases and merge keys": f"x: &s\n  image: vllm/vllm-openai:v0.11.0\n  environment: &e {{M: x}}\nservices:\n  v:\n    <<: *s\n    command: &c --model T "
    f"--speculative-config '{CONFIG.replace(': ', ':')}'\n  w: {{<<: *s, command: *c}}\n",
    "several documents": "apiVersion: v1\nkind: Service\n---\n# ours\nspec:\n- image: vllm/vllm-openai:v0.11.0\n  args:\n  - --model\n  - T\n"
    f"  - --speculative-config\n  - >-\n    {CONFIG[:20]}\n    {CONFIG[20:]}\n---\nkind: End\n",
    "in a here-document": f"kubectl apply -f - <<EOF\nspec:\n- image: vllm/vllm-openai:v0.11.0\n  args: [--model, T, --speculative-config, '{CONFIG}']\nEOF\n",
    "docker inspect": json.dumps([{"Image": "sha256:0", "Config": {"Image": "vllm/vllm-openai:v0.11.0", "Env": ["A=b"], "Entrypoint": ["vllm", "serve"],
                                                                           "Cmd": ["T", "--speculative-config", CONFIG]}}], indent="\t"),
    "Helm's values": f"image:\n  repository: vllm/vllm-openai\n  tag: v0.11.0\nextraArgs: [--model, T, --speculative-config, '{CONFIG}']\n",
    "Helm's template": "spec:\n{{- if .Values.on }}\n  containers:\n  - image: {{ .Values.image }}\n    env:\n"
    "    - name: VLLM_X\n      value: {{ .Values.x | quote }}\n"
    f"    command: [vllm, serve, T]\n    args:\n    - --speculative-config\n    - '{CONFIG}'\n{{{{- end }}}}\n",
    "pod, quoted script": 'command: ["/bin/sh", "-c"]\nargs: [' + json.dumps(f"vllm serve T --speculative-config '{CONFIG}'") + "]\n",
}  # fmt: skip


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
def test_scripts_and_descriptions_of_containers_are_seen_through(text: str) -> None:
    """The draft that they ask for, and no word of what stands around the command."""
    seen = parse_launch(text)
    assert (seen.target_path, (seen.algorithm or "").lower(), seen.draft_path, seen.unknown) == ("T", "eagle3", "D", ())


OPEN = [
    "vllm serve T $OPTS",
    'vllm serve T "$@"',
    "vllm serve T --enforce-eager $MORE",
    "vllm serve $(cat model) `cat options`",
    'vllm serve T --speculative-config "$SPEC"',
    "vllm serve T --speculative-config='${SPEC:-}'",
    'vllm serve T "${ARGS[@]}"',
    "if [ $A = 1 ]; then\n  OPTS=--speculative-config...\nelse\n  OPTS=\nfi\nvllm serve T $OPTS",
    '[ -n "$A" ] && OPTS=""\nvllm serve T $OPTS',
    "sglang serve --model-path $MODEL $EXTRA_ARGS",
    "sglang serve --model-path T --speculative-algorithm $ALGORITHM --speculative-num-steps ${STEPS}",
    "sglang serve --model-path T --speculative-algorithm EAGLE3 --speculative-draft-model-path $DRAFT --speculative-eagle-topk $K",
    "image: vllm/vllm-openai:v0.11.0\nargs:\n- --model\n- T\n- $(EXTRA)\n",
    "image: vllm/vllm-openai:v0.11.0\ncommand: [vllm, serve, T]\nargs:\n  {{- toYaml .Values.args | nindent 2 }}\n",
    "image: vllm/vllm-openai:v0.11.0\ncommand: [vllm, serve, T]\nargs:\n{{- range .Values.args }}\n- {{ . }}\n{{- end }}\n",
]


@pytest.mark.parametrize("text", OPEN)
def test_what_a_variable_holds_is_not_guessed(text: str, tmp_path: Path) -> None:
    """Nothing assigns it, or only on a condition: it is named, and no option is held to be missing."""
    launch = parse_launch(text)
    assert launch.unknown and launch.partial
    case = Case(
        Given(
            draft=write_draft(tmp_path / "draft"),
            launch=text,
            engine=f"{launch.engine}=={'0.32.0' if launch.engine == 'vllm' else '0.5.23'}",
        )
    )
    found = detect(case)
    assert [f.title for f in found if f.fault == "C0"] == [f.title for f in found if f.title.startswith("cannot tell what")] != []
    assert not [f for f in found if f.evidence and any(e.source == "launch command" for e in f.evidence) and f.severity > Severity.NOTE]
    assert not case.would_show((("launch",),))


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve $MODEL --port $PORT",
        "sglang serve --model-path $MODEL --tp $TP",
        "OPTS='--port 1'; vllm serve T $OPTS",
        "vllm serve T --port=$PORT",
    ],
)
def test_a_variable_that_is_a_value_hides_no_option(text: str, tmp_path: Path) -> None:
    """Paths and ports are often variables: what else is given is known all the same."""
    found = detect(Case(Given(draft=write_draft(tmp_path / "draft"), launch=text)))
    assert [f.title for f in found if f.fault == "FM-03"] == [
        "no speculative decoding is asked for in the launch command: nothing is drafted"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "${a:-" * 900 + "}" * 900,
        "a=(" * 900,
        'A="1$A$A"\n' * 60 + "vllm serve $A",
        "$(" * 3000,
        "if " * 3000,
        "args:\n" * 3000,
        "- command:\n  - a\n" * 900,
    ],
    ids=["defaults", "arrays", "doubling", "substitutions", "ifs", "keys", "containers"],
)
def test_no_script_grows_without_end(text: str) -> None:
    """Values are put in up to a limit, and what lies in itself is followed a few times."""
    try:
        assert len(repr(parse_launch(text))) < 1_000_000
    except BadArgument:
        pass


LARGEST = 1 << 17
GROWING: dict[str, tuple[str, str, str]] = {  # what comes first, what is repeated up to half the largest text, what comes last
    "doubled empty words": ("a=('' '')\n", 'a=("${a[@]}" "${a[@]}")\n', "vllm serve m"),
    "a pod's variable": ("image: vllm\nenv:\n  A: " + "x" * 40_000 + "\nargs:\n  - ", "$(A)", ""),
    "items of a list": ("image: vllm\nargs:\n", "- a\n", ""),
    "names of an engine": ("", "sglang ", ""),
    "names of an engine on lines": ("", "sglang\n", ""),
    "printed commands": ("", "echo 'vllm serve' ", ""),
    "nested commands": ("A=" + "x" * 40_000 + "\n", "bash -c 'vllm serve $A' ", ""),
    "options on lines": ("vllm serve m", "\n--a", ""),
    "variables in a word": ("a=\nvllm serve ", "x${a}", ""),
    "variables in a value": ("a=" + "x" * 40_000 + "\nvllm serve b=$a", "$a", ""),
    "added values": ("a=\n", "a+=xxxxxxxx\n", "vllm serve $a"),
    "added words": ("a=()\n", "a+=(x)\n", "vllm serve ${a[@]}"),
    "blanks in an image": ("image: a", " ", "vllm\nargs: [a]\n"),
    "blanks in an item": ("- a", " ", "b"),
    "empty lines of a list": ("CMD [", "\n", "vllm serve"),
    "quotes": ("image: vllm\nargs: '", "''", " x"),
    "brackets": ("vllm serve ", "[", ""),
    "backquotes": ("vllm serve ", "`\n", ""),
    "dollars": ("vllm serve ", "${a:-", ""),
    "here-documents": ("", "cat <<A\n", ""),
    "conditions": ("vllm serve ", "a && A=1 ", ""),
    "parentheses": ("", "(A=1 ", "vllm serve m"),
}


@pytest.mark.parametrize("parts", GROWING.values(), ids=GROWING)
def test_a_large_text_is_read_within_seconds(parts: tuple[str, str, str]) -> None:
    """Whatever it repeats, the work and what comes of it stay near the length of the text."""
    first, repeated, last = parts
    text = first + repeated * ((LARGEST // 2 - len(first) - len(last)) // len(repeated)) + last
    before = process_time()
    try:
        assert len(repr(parse_launch(text))) < 4 * LARGEST
    except BadArgument:
        pass
    assert process_time() - before < 3


def test_a_text_too_long_for_a_command_is_refused(tmp_path: Path) -> None:
    """With its size, pasted or in a file."""
    (tmp_path / "run.sh").write_text("vllm serve m " + "x" * LARGEST)
    for source in (tmp_path / "run.sh", "vllm serve m " + "x" * LARGEST):
        with pytest.raises(BadArgument, match=r"131085 characters, more than the 131072"):
            read_launch(source)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A=1\nA=2\nvllm serve m --x $A", "2"),
        ("A=1\nA=$A/b\nvllm serve m --x $A", "1/b"),
        ("A=1\nA+=2\nvllm serve m --x $A", "12"),
        ("A=(1 2)\nA=3\nvllm serve m --x $A", "3"),
        ("A=(1 2)\nA=(3)\nA+=(B=4)\nvllm serve m --x ${A[@]} $B", "3 B=4"),
        ("A+=2\nvllm serve m --x $A", "$A"),
    ],
)
def test_a_later_assignment_takes_the_place_of_an_earlier_one(text: str, value: str) -> None:
    """And only ``+=`` adds to it, where it is known what it adds to."""
    assert parse_launch(text).arguments["x"] == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(A=2)", "$A"),
        ("A=2 ./other.sh", "1"),
        ("old() { A=2; }", "$A"),
        ("function old {\n  A=2\n}", "$A"),
        ("test -e x && A=2", "$A"),
        ("grep -q x y || A=2", "$A"),
        ("A=2 &", "$A"),
        ("echo | A=2 cat", "$A"),
        ("unset A", "$A"),
        ("read -r A < file", "$A"),
        ("printf -v A 2", "$A"),
        ("source ./env.sh", "$A"),
        (". ./env.sh", "$A"),
        ("cd x && (A=2)\nA=3", "3"),
        ("cd x && B=(x y)\nA=3", "3"),
        ("source venv/bin/activate && cd x &&\n  true", "1"),
        ("cat > env.sh <<'END'\nA=2\nIt's\nEND", "1"),
        ("cat <<-END | tee x\n\tvllm serve m --x old\n\tEND", "1"),
        ("A=2 > log 2>&1", "$A"),
        ("A=$'2'", "2"),
        ("A=$'2\\'3'", "2'3"),
        ('A=$"2"', "2"),
    ],
)
def test_a_variable_has_a_value_only_where_that_certainly_holds(text: str, value: str) -> None:
    """Not from a subshell, a function, a condition, another command, or the body of a document; a default does not stand for it either."""
    assert parse_launch(f"A=1\n{text}\nvllm serve m --x $A").arguments["x"] == value
    if value == "$A":
        assert parse_launch(f"A=1\n{text}\nvllm serve m --x ${{A:-4}}").arguments["x"] == "${A:-4}"


@pytest.mark.parametrize(
    "text",
    [
        "cd x && export A=1 && vllm serve m --x $A",
        "(cd x; A=1; vllm serve m --x $A)",
        "run() {\n  A=1\n  vllm serve m --x $A\n}\nrun",
        "cat > run.sh <<EOF\nA=1\nvllm serve m --x $A\nEOF\nbash run.sh",
        "ssh gpu <<'EOF'\nvllm serve m --x 1\nEOF",
    ],
)
def test_a_command_knows_what_was_assigned_where_it_stands(text: str) -> None:
    """In the same chain, parentheses or function, and in a document when the script itself starts no server."""
    assert parse_launch(text).arguments == {"model": "m", "x": "1"}


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        ('CMD ["vllm", "serve", "m", "--x", "1"]\nCMD ["vllm", "serve", "m", "--x", "2"]', "2"),
        ('ENTRYPOINT ["vllm", "serve"]\nCMD ["m", "--x", "2"]', "2"),
        ('CMD ["m", "--x", "2"]\nENV A=b\nENTRYPOINT [ "vllm", "serve" ]', "2"),
        ('ENTRYPOINT vllm serve m \\\n  --x 1\nCMD ["--x", "2"]', "1"),
        ('ENTRYPOINT ["vllm", "serve", "m", "--x", "1"]', "1"),
        ('ENTRYPOINT []\nCMD ["vllm", "serve", "m", "--x", "1"]', "1"),
        ("ENV A=3\nCMD vllm serve m --x $A", "3"),
    ],
)
def test_what_a_dockerfile_starts_is_its_last_entry_point_and_command(lines: str, value: str) -> None:
    """A list under CMD goes on where a list under ENTRYPOINT ends."""
    seen = parse_launch(f"FROM vllm/vllm-openai:v0.11.0\n{lines}\n")
    assert (seen.target_path, seen.arguments["x"], seen.version) == ("m", value, "0.11.0")


@pytest.mark.parametrize("blanks", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize(
    "text",
    [
        "vllm serve T --speculative-config {} --port 80",
        "vllm serve T --port 80 --speculative-config {}",
        "/usr/bin/python3 /usr/bin/vllm serve T --speculative-config={} --port 80",
        "vllm serve T --hf-overrides {{}} --speculative_config {} --port 80 > log",
        "sh -c 'vllm serve T --speculative-config {} --port 80'",
        "vllm\0serve\0T\0--speculative-config\0{}\0--port\0" + "80\0",
        "bash\0-c\0vllm serve T --speculative-config '{}' --port 80\0",
    ],
)
def test_what_ps_and_proc_show_is_a_command(text: str, blanks: tuple[str, str], tmp_path: Path) -> None:
    """JSON without the quotes around it is taken as it stands, also from a file, and a NUL ends a word."""
    config = {"method": "eagle3", "model": "/my draft/it's", "num_speculative_tokens": 4, "x": {"y": [1, {"z": "} --a"}]}}
    if "'" in text:
        config["model"] = "/d"
    command = text.format(json.dumps(config, separators=blanks))
    (tmp_path / "cmdline").write_text(command)
    for source in (command, tmp_path / "cmdline"):
        seen = read_launch(source)
        assert (seen.algorithm, seen.draft_path, seen.steps, seen.target_path) == ("eagle3", config["model"], 4, "T")
        assert seen.number("port") == 80 and not seen.unknown


def test_words_of_a_command_are_taken_as_they_are() -> None:
    """A list as Popen takes it, from Python: blanks, quotes and dollars in a word mean nothing."""
    words = ["vllm", "serve", "/m/it's $HOME", "--speculative-config", json.dumps({"method": "eagle3", "model": "/a b"})]
    for source in (words, tuple(words)):
        seen = read_launch(source)
        assert (seen.target_path, seen.draft_path) == ("/m/it's $HOME", "/a b")
    for wrong in ([], ["vllm", 1], {"vllm"}):
        with pytest.raises(BadArgument, match="is not a launch command"):
            read_launch(wrong)


@pytest.mark.parametrize("config", ["{method:eagle3}", '{"method": "eagle3"', "{'method': 'eagle3'}", '{"method": "eagle3"}x'])
def test_what_is_no_json_is_still_refused(config: str) -> None:
    """Cut off, or without its inner quotes."""
    with pytest.raises(BadArgument, match=r"JSON|quote"):
        parse_launch(f"vllm serve T --speculative-config {config} --port 80")


def test_variables_before_the_server_are_its_environment() -> None:
    """As a shell, env, export and docker set them; keys among them are not kept."""
    text = "export A=1\nB='2 3' env C=4 docker run -e D=5 --env=E=6 -e HF_TOKEN=abc vllm/vllm-openai:v0.11.0 --model T --api-key abc"
    seen = parse_launch(text)
    assert dict(seen.environment) == {"A": "1", "B": "2 3", "C": "4", "D": "5", "E": "6", "HF_TOKEN": "(hidden)"}
    assert seen.version == "0.11.0" and seen.arguments["api-key"] == "(hidden)" and "abc" not in repr(seen)


def test_numbers_of_tokens_are_no_secrets() -> None:
    """Names that merely resemble a token's are kept."""
    seen = parse_launch(CHAIN + "--max-total-tokens 9 --speculative-token-map m.pt --ssl-keyfile f")
    assert (seen.arguments["max-total-tokens"], seen.arguments["speculative-token-map"], seen.num_draft_tokens) == ("9", "m.pt", 5)


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve T -sc.method eagle3 -sc.num-speculative-tokens 3 -sc.model D",
        "vllm serve T --spec-method eagle3 --spec-model D --spec-tokens 3",
        vllm(),
        "python -m vllm.entrypoints.cli.main serve T --speculative-config="
        '"{\\"method\\":\\"eagle3\\",\\"model\\":\\"D\\",\\"num_speculative_tokens\\":3}"',
    ],
)  # fmt: skip
def test_every_way_to_name_a_draft_to_vllm(text: str) -> None:
    """Dotted, short, JSON, and the options of 0.32."""
    seen = parse_launch(text)
    assert (seen.engine, seen.algorithm, seen.draft_path, seen.steps) == ("vllm", "eagle3", "D", 3)


def test_options_in_a_file_are_read_where_it_lies(tmp_path: Path) -> None:
    """Nested YAML and JSON, beside the file of the command; the command line wins, and a file that is not there is named."""
    (tmp_path / "serve.yaml").write_text(
        "# ours\nmodel: T  # the target\nmax-model-len: 4096\nspeculative-config:\n  method: eagle3\n  model: 'D'\n  num_speculative_tokens: 3\n"
        "served-model-name:\n- a\n- b\nlist: [1, 'x']\n"
    )
    (tmp_path / "command.txt").write_text("vllm serve --config serve.yaml --max-model-len 512")
    seen = read_launch(tmp_path / "command.txt")
    assert (seen.algorithm, seen.draft_path, seen.steps, seen.target_path) == ("eagle3", "D", 3, "T")
    assert seen.arguments["max-model-len"] == "512" and json.loads(seen.arguments["served-model-name"]) == ["a", "b"]
    (tmp_path / "serve.yaml").write_text('{"speculative_config": {"method": "eagle"}}')
    assert read_launch(tmp_path / "command.txt").algorithm == "eagle"
    (tmp_path / "trt.yaml").write_text("speculative_config:\n  decoding_type: Eagle\n  max_draft_len: 3\n  speculative_model_dir: D\n")
    (tmp_path / "command.txt").write_text("trtllm-serve T --extra_llm_api_options trt.yaml")
    seen = read_launch(tmp_path / "command.txt")
    assert (seen.engine, seen.algorithm, seen.steps, seen.draft_path) == ("tensorrt-llm", "Eagle", 3, "D")
    assert parse_launch("vllm serve T --config absent.yaml").unread == ("absent.yaml",)


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]\n" for a, b in pairwise("abcdefghij"))
BAD_YAML = {
    "tab": ("\ta: 1", "line 1"), "list": ("- a", "mapping"), "open quote": ("b: 1\na: 'b", "line 2"), "indent": ("a: 1\n   b: 2", "line 2"),
    "words": ("just words", "mapping"), "flow list": ("[1]", "mapping"), "object": ("b:\n- a: !!python/object x", "line 2.*tag"),
    "own tag": ("a: !x 1", "line 1.*tag"), "documents": ("a: 1\n---\nb: 2", "another document"), "unknown alias": ("a: *b", "line 1.*alias"),
    "itself": ("a: &a [*a]", "aliases"), "laughs": (LAUGHS, "aliases"), "merged laughs": (LAUGHS.replace("[x", "{y: [x").replace("x]", "x]}", 1), "aliases"),
    "merged word": ("<<: a", "mapping"), "key": ("? [a]\n: b", "key"), "deep": ("a: " + "[" * 999, "deep"),
    "steps": ("".join(f"{' ' * i}a:\n" for i in range(99)), "deep"),
    "beyond Unicode": ('a: "\\UFFFFFFFF"', "line 1"), "control": ("b: 1\na: \x07", "line 2.*control"), "directive": ("%YAML 9.9\n---\na: 1", "line 1"),
    "large": ("a: " + "x" * (1 << 17), "larger"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), BAD_YAML.values(), ids=BAD_YAML)
def test_settings_that_are_no_mapping_or_without_end_are_a_clear_error(text: str, words: str, tmp_path: Path) -> None:
    """With the line, at once, and never by building an object."""
    (tmp_path / "f.yaml").write_text(text)
    before = process_time()
    with pytest.raises(UnreadableFile, match=words):
        read_settings(tmp_path / "f.yaml")
    assert process_time() - before < 2


@pytest.mark.parametrize(
    "text",
    [
        "speculative-config: {method: eagle3, model: D, num_speculative_tokens: 3}",
        "speculative-config:\n  method: eagle3\n  model: D # ours\n  num_speculative_tokens: 3\n",
        "spec: &spec\n  method: eagle3\n  model: D\nspeculative-config:\n  <<: *spec\n  num_speculative_tokens: 3\n",
        "a: &a {method: eagle, model: D}\nspeculative-config: {<<: [*a, {model: E}], method: eagle3, num_speculative_tokens: 3}",
        'speculative-config: |\n  {"method": "eagle3", "model": "D",\n  "num_speculative_tokens": 3}\n',
        'speculative-config: >-\n  {"method": "eagle3", "model": "D",\n\n  "num_speculative_tokens": 3}\n',
        'speculative-config: "{\\"method\\": \\"eagle3\\", \\"model\\": \\"D\\", \\"num_speculative_tokens\\": 3}"',
        '%YAML 1.2\n---\n{"speculative-config": {"method": "eagle3", "model": "D", "num_speculative_tokens": 3}}\n...\n',
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_settings_are_yaml_however_they_are_written(text: str, encoding: str, tmp_path: Path) -> None:
    """Flow and block, aliases and merge keys, block scalars and quotes, in the encodings that PowerShell writes; the command's own file too."""
    (tmp_path / "f.yaml").write_text(text, encoding=encoding)
    (tmp_path / "run.ps1").write_text("vllm serve T `\r\n --config f.yaml\r\n", encoding=encoding)
    seen = read_launch(tmp_path / "run.ps1")
    assert (seen.target_path, seen.algorithm, seen.draft_path, seen.steps, seen.unread) == ("T", "eagle3", "D", 3, ())


@pytest.mark.parametrize(
    ("text", "on"), [("true", True), ("Yes", True), ("on", True), ("'no'", True), ("no", False), ("OFF", False), ("~", False), ("", False)]
)
def test_a_switch_in_settings_is_what_yaml_says(text: str, on: bool, tmp_path: Path) -> None:
    """An engine sees True and False, not how they were spelled; nothing is no option at all."""
    (tmp_path / "f.yaml").write_text(f"enforce-eager: {text}")
    (tmp_path / "run.sh").write_text("vllm serve T --config f.yaml")
    assert read_launch(tmp_path / "run.sh").has("enforce-eager") is on


def test_no_file_but_below_the_command_is_read(tmp_path: Path) -> None:
    """A command may come from a stranger: neither dots, nor a link, nor a whole path lead it out of its folder; what is not read is named."""
    (tmp_path / "in" / "deeper").mkdir(parents=True)
    for place in ("secret.yaml", "in/here.yaml", "in/deeper/there.yaml"):
        (tmp_path / place).write_text("model: M")
    (tmp_path / "in" / "link.yaml").symlink_to("../secret.yaml")
    (tmp_path / "in" / "up").symlink_to("..")
    (tmp_path / "in" / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "in" / "own.yaml").symlink_to("deeper/there.yaml")
    names = ["../secret.yaml", str(tmp_path / "secret.yaml"), "link.yaml", "up/secret.yaml", "loop.yaml", "x\0.yaml", "y" * 9000 + ".yaml", "deeper",
             "here.yaml", "./deeper/../here.yaml", "deeper/there.yaml", "own.yaml", str(tmp_path / "in" / "here.yaml")]  # fmt: skip
    for name in names:
        (tmp_path / "in" / "run.sh").write_text(f"vllm serve --config '{name}'")
        seen = read_launch(tmp_path / "in" / "run.sh")
        assert (seen.target_path, seen.unread) == (("M", ()) if names.index(name) > 7 else (None, (name,)))


@LIGHT
@given(st.text(max_size=80))
def test_no_settings_break_the_reader(text: str) -> None:
    """A mapping or a clear error."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "f.yaml")
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            assert isinstance(read_settings(path), dict)
        except UnreadableFile:
            pass


NAMES = [
    *options_sglang.ADDED["0.4.5"].split(),
    *options_vllm.ADDED["0.9.2"].split(),
    "speculative-config",
    "speculative-config.method",
    "tp",
]
OPTIONS = st.sampled_from(NAMES)
VALUES = st.sampled_from(["", "1", "0", "-1", "x", "{}", "[]", "None", "1e9", "'", "$X", "9" * 30, "{'a':1}", "EAGLE", "ngram"]) | st.text(
    max_size=8
)


@LIGHT
@given(
    st.sampled_from(["python -m sglang.launch_server", "vllm serve T", "sglang serve", "trtllm-serve T"]),
    st.lists(st.tuples(OPTIONS, VALUES), max_size=8),
)
def test_no_options_break_parser_or_judges(head: str, pairs: list[tuple[str, str]]) -> None:
    """Any values under any options: findings, or a clear error."""
    words = [f"--{name} {value}" for name, value in pairs]
    try:
        detect(Case(Given(launch=" ".join([head, *words]))))
    except BadArgument:
        pass
    try:
        parse_launch(" ".join(words))
    except InputError:
        pass


# --- what it says -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        (CHAIN, "sglang==0.5.23"), (TREE, "sglang==0.5.8"), (SGLANG, "sglang==0.5.11"),
        (CHAIN + "--tp-size 8 --quantization fp8 --speculative-draft-model-quantization unquant", "sglang==0.5.23"),
        (vllm(), "vllm==0.32.0"), (vllm(draft_tensor_parallel_size=1) + " -tp 4", "vllm==0.11"),
        (TREE + "--page-size 16 --attention-backend fa3", "sglang==0.5.23"),
        ("vllm serve T -sc.model yuhuili/EAGLE3-LLaMA -sc.num_speculative_tokens 2", "vllm==0.32.0"),
        ("python -m sglang.launch_server --model-path T", "sglang==0.5.23"), ("vllm serve T -tp 2 -O3", "vllm==0.32.0"),
        (CHAIN + "--speculative-token-map $MAP --cuda-graph-bs 1 2", "sglang==0.5.9"), ("trtllm-serve T", None),
    ],
)  # fmt: skip
def test_a_sound_command_is_silent(command: str, engine: str | None) -> None:
    """Nothing above a note."""
    assert found(command, engine) == []


CASES: list[tuple[str, str, str, str | None, str]] = [
    ("algorithm missing", SGLANG.replace("--speculative-algorithm EAGLE3", ""), "FM-03", None, "no algorithm"),
    ("algorithm misspelt", SGLANG.replace("EAGLE3", "EAGLE-3"), "FM-03", None, "not one that SGLang knows"),
    ("small letters, old", SGLANG.replace("EAGLE3", "eagle3"), "FM-03", "sglang==0.5.9", "capitals"),
    ("draft missing", SGLANG.replace("--speculative-draft-model-path D", ""), "FM-03", None, "without a draft"),
    ("dummy draft", CHAIN + "--speculative-draft-load-format dummy", "FM-03", None, "random weights"),
    ("simulated", "SGLANG_SIMULATE_ACC_LEN=3 " + CHAIN, "FM-76", None, "simulated"),
    ("topk alone", SGLANG + "--speculative-eagle-topk 4", "FM-04", None, "without steps"),
    ("too many slots", TREE.replace("16", "64"), "FM-04", None, "more slots"),
    ("tree on trtllm_mha", TREE + "--attention-backend trtllm_mha", "FM-60", None, "trtllm_mha"),
    ("tree over pages", TREE + "--attention-backend flashmla --page-size 64", "FM-60", None, "over pages"),
    ("torch_native", CHAIN + "--attention-backend torch_native", "FM-60", None, "torch_native"),
    ("V2 with a tree", "SGLANG_ENABLE_SPEC_V2=1 " + TREE, "FM-63", "sglang==0.5.9", "chains only"),
    ("inherited quantisation", CHAIN + "--quantization awq", "FM-23", None, "quantisation"),
    ("partial sums", CHAIN + "--tp-size 8 --enable-flashinfer-allreduce-fusion", "FM-37", "sglang==0.5.11", "partial sums"),
    ("pipeline", CHAIN + "--pp-size 2", "FM-40", None, "last stage"),
    ("rejection in a tree", TREE + "--speculative-use-rejection-sampling", "FM-75", None, "chains only"),
    ("EAGLE by name", CHAIN.replace("EAGLE3", "EAGLE").replace(" D ", " x/EAGLE3-llama "), "FM-01", None, "called EAGLE-3"),
    ("NEXTN by name", CHAIN.replace("EAGLE3", "NEXTN").replace(" D ", " x/qwen_eagle3 "), "FM-01", None, "called EAGLE-3"),
    ("target as draft", CHAIN.replace(" D ", " T "), "FM-27", None, "its own draft"),
    ("option of a later version", CHAIN + "--speculative-draft-window-size 9", "C0", "sglang==0.5.9", "speculative-draft-window-size"),
    ("option of an earlier version", CHAIN + "--enable-ep-moe", "C0", "sglang==0.5.23", "enable-ep-moe"),
    ("misspelt option", CHAIN.replace("num-steps", "nm-steps"), "C0", None, "speculative-nm-steps"),
    ("method misspelt", vllm(method="EAGLE3"), "FM-03", "vllm==0.32.0", "not one that vLLM knows"),
    ("method missing", vllm(method=None), "FM-01", "vllm==0.32.0", "no method"),
    ("method eagle, draft eagle3", vllm(method="eagle", model="x/EAGLE3-llama"), "FM-01", "vllm==0.32.0", "called EAGLE-3"),
    ("name says both", vllm(method=None, model="my-eagle-eagle3"), "FM-01", "vllm==0.32.0", "no method"),
    ("model missing", vllm(model=None), "FM-03", "vllm==0.32.0", "without a draft"),
    ("synthetic", vllm(rejection_sample_method="synthetic", synthetic_acceptance_length=3), "FM-76", "vllm==0.32.0", "synthetic"),
    ("draft's parallelism", vllm(draft_tensor_parallel_size=2) + " -tp 4", "FM-80", "vllm==0.32.0", "neither 1"),
    ("field of a later version", vllm(parallel_drafting=True), "C0", "vllm==0.11.0", "parallel_drafting"),
    ("field that is gone", vllm(speculative_token_tree="[(0,)]"), "C0", "vllm==0.32.0", "speculative_token_tree"),
    ("old option", "vllm serve T --speculative-model D --num-speculative-tokens 3", "C0", "vllm==0.32.0", "speculative-model"),
    ("vLLM pipeline", vllm() + " -pp 2", "FM-40", "vllm==0.32.0", "other stages"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "fault", "engine", "words"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_faulty_command_is_named(command: str, fault: str, engine: str | None, words: str) -> None:
    """First, with the option that shows it, and only where the version has that fault."""
    said = [f for f in found(command, engine or "sglang==0.5.23") if words in f.title]
    assert [f.fault for f in said] == [fault]
    assert said[0].fix and said[0].because


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        (SGLANG.replace("EAGLE3", "eagle3"), "sglang==0.5.23"), (CHAIN + "--tp-size 8 --enable-flashinfer-allreduce-fusion", "sglang==0.5.14"),
        (TREE, "sglang==0.5.23"), (CHAIN + "--speculative-draft-window-size 9", "sglang==0.5.12"), (CHAIN + "--enable-ep-moe", "sglang==0.5.4"),
        (vllm(parallel_drafting=True), "vllm==0.16"),
    ],
)  # fmt: skip
def test_a_fault_ends_with_its_version(command: str, engine: str) -> None:
    """And between two versions that were read, an option that only one of them has is not held against anyone."""
    assert found(command, engine) == []


def test_an_unknown_version_is_a_note() -> None:
    """Not known at all, and newer than all that were read."""
    for engine in (None, "sglang==0.9.0"):
        notes = [f for f in detect(Case(Given(launch=CHAIN, engine=engine))) if f.fault == "C0"]
        assert len(notes) == 1 and notes[0].severity is Severity.NOTE
    assert [f for f in detect(Case(Given(launch=CHAIN + "--config x.yaml", engine="sglang==0.5.23"))) if "file" in f.title]


def test_tables_agree_with_themselves() -> None:
    """Names appear before they go; every row of the combinations is of a version that can be read, and shows options that exist."""
    for table in (options_sglang.TABLE, options_vllm.TABLE, options_vllm.CONFIG):
        assert list(table.read) == sorted(table.read, key=Version.parse) and set(table.added) | set(table.gone) <= set(table.read)
        first = Version.parse(table.read[0])
        assert all(table.knows(name, first) for name in table.added[table.read[0]].split())
    for rows, table in ((combos_sglang.COMBINATIONS, options_sglang.TABLE), (combos_vllm.COMBINATIONS, options_vllm.TABLE)):
        for row in rows:
            assert all(table.ever(name) for name in row.shown), row.title
            assert row.source and row.fix and Version.parse(row.since) < Version.parse(row.until or "99")


def test_vllm_guesses_the_method_as_its_code_does() -> None:
    """config/speculative.py looks for "eagle-" before "eagle3"."""
    names = {
        "yuhuili/EAGLE-LLaMA3": "eagle",
        "yuhuili/EAGLE3-LLaMA": "eagle3",
        "a/eagle-3-x": "eagle",
        "a/b_eagle3": "eagle3",
        "draft": "draft_model",
    }
    assert {n: method(parse_launch(f"vllm serve T -sc.model {n}")) for n in names} == names


# --- with the draft at hand -------------------------------------------------------------------------------------------------------------

SPECULATORS = {"proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}]}


@pytest.mark.parametrize(
    ("changes", "options", "engine", "expected"),
    [
        ({}, "", "0.5.9", ("FM-28", 20)),  # boundaries 2, 3, 4 and not the default 2, 3, 3 of six layers
        ({}, "--disable-cuda-graph", "0.5.9", None),
        ({}, "--device cpu", "0.5.9", None),
        ({}, "", "0.5.11", None),
        ({}, "--context-length 4096", "0.5.23", ("FM-54", 20)),
        ({}, "--context-length 512", "0.5.23", None),
        ({}, "--speculative-draft-window-size 64", "0.5.23", ("FM-56", 20)),
        ({"sliding_window": 64}, "--speculative-draft-window-size 64", "0.5.23", None),
        ({"sliding_window": 64, "use_sliding_window": False}, "--speculative-draft-window-size 64", "0.5.23", ("FM-56", 20)),
        ({"speculators_config": SPECULATORS}, "", "0.5.23", ("FM-69", 10)),
        ({"speculators_config": SPECULATORS}, "--speculative-num-steps 3 --speculative-num-draft-tokens 4", "0.5.23", None),
    ],
)
def test_options_are_held_against_the_draft(
    changes: dict[str, Any], options: str, engine: str, expected: tuple[str, int] | None, tmp_path: Path
) -> None:
    """Each fault with its legal twin, and the end of its version range."""
    draft = write_draft(tmp_path / "draft", **changes)
    case = Case(Given(draft=draft, target=small_target(), launch=CHAIN + options, engine=f"sglang=={engine}"))
    said = [(f.fault, int(f.severity)) for f in detect(case) if f.fault in ("FM-28", "FM-54", "FM-56", "FM-69")]
    assert said == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (CHAIN, False), (CHAIN.replace("EAGLE3", "EAGLE"), True), (CHAIN.replace("EAGLE3", "nextn"), True), (vllm(), False), (vllm(method="eagle"), True),
        (vllm(method=None, model="x/eagle3"), False), (vllm(method=None, model="x/eagle-3"), True),
    ],
)  # fmt: skip
def test_eagle_for_eagle3_is_an_error_once_the_draft_shows_its_width(command: str, named: bool, tmp_path: Path) -> None:
    """In both engines, also where vLLM guesses it from the name."""
    found = detect(Case(Given(draft=write_draft(tmp_path / "draft"), launch=command, engine="sglang==0.5.23")))
    errors = [f for f in found if f.fault == "FM-01" and f.severity is Severity.ERROR and "fc is skipped" in f.title]
    assert len(errors) == named


def test_a_head_that_is_borrowed_under_a_reduced_vocabulary_is_named(tmp_path: Path) -> None:
    """vLLM's own line, against the draft's config."""
    line = "Detected EAGLE model without its own lm_head in the checkpoint. Sharing target model lm_head weights with the draft model."
    headless = small_draft().replace(tensors={"lm_head.weight": None})
    for made, expected in ((headless, ["FM-06"]), (None, ["C0"])):  # with a head in the file, the server runs another copy
        draft = write_draft(tmp_path / f"{expected}", made)
        case = Case(Given(draft=draft, log=f"\n{line}\n", engine="sglang==0.5.23"))
        found = [f.fault for f in detect(case) if any(line in str(e.value) for e in f.evidence)]
        assert found == expected

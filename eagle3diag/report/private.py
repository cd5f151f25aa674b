"""What is private: keys always, and what names a person or a machine unless asked for; one table of kinds."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

HOME = "home folder"


def _never(match: re.Match[str]) -> bool:
    return False


@dataclass(frozen=True)
class Kind:
    """One kind of private text, shown as ``(name removed)``.

    ``pattern``: what it looks like; a group called ``keep`` stays in front of the mark. ``reason``: why it is not for strangers.
    ``spares``: whether a match is a legal twin after all. ``always``: removed on a terminal and on request too, because no diagnosis
    needs it.
    """

    name: str
    pattern: re.Pattern[str]
    reason: str
    spares: Callable[[re.Match[str]], bool] = _never
    always: bool = False

    @property
    def mark(self) -> str:
        return "(home)" if self.name == HOME else f"({self.name} removed)"  # short, because the rest of the path follows

    def remove(self, text: str) -> str:
        return self.pattern.sub(self._one, text)

    def _one(self, match: re.Match[str]) -> str:
        return match[0] if self.spares(match) else f"{match.groupdict().get('keep') or ''}{self.mark}"


# A value after a name: quoted, or up to what ends a word in a command line, a dictionary or a query.
_VALUE = (
    r"(?:<\|[\w -]{1,40}\|>|\$\{\w+\}|\$\{[^}\n]{0,500}\}|\$\([^)\n]{0,500}\)|\$'[^'\n]{0,500}'|"
    r"\\\"[^\"\n]*\"|\"[^\"\n]*\"|'[^'\n]*'|\[[^\]\n]*\]|[^\s,;&|'\"(){}\[\]]+)"
)
# Further values of an option that takes several: long, with digits and letters, and no path; the words of a command have no such form.
_RANDOM = r"(?=[^\s\"']{0,200}\d)(?=[^\s\"']{0,200}[A-Za-z])[A-Za-z0-9+_=~-]{8,}"
_FURTHER = rf"(?:[ \t]+(?!-|\(key)[\"']?{_RANDOM}[\"']?(?=[\s)\]}},;]|$))*"
_LINE = r"[^\n;|&]{0,200}?"  # the words of one command
_ASKS = r"(?:(?:login|password-stdin|passphrase-fd|with-token)\b|sudo\s+-S)"  # commands that read a key
_IS = r"\\?['\"]?\]?\s*(?:[=:]|%3D)\s*"  # NAME=value, "name": "value", name='value', {\"name\": \"value\"}
NO_SECRET = re.compile(
    r"(?:none|null|true|false|\d{1,9}|\*+|\$\{?\w+\}?|</?[\w -]*>|<\|[\w -]*\|>|\[\s*\]|(?-i:\[[A-Z_]{1,16}\])|)", re.IGNORECASE
)
_LONG_NUMBER = re.compile(r"(?:api[-_]?key|secret|passw(?:or)?d|passphrase)\W*$", re.IGNORECASE)
_SELDOM = re.compile(r"(?:[\w-]{2}[-_](?:key|token)|--?key)\W*$", re.IGNORECASE)
_SURE = re.compile(
    r"(?:api|access|private|account|encryption|signing|admin|subscription|secret|hf|hub|vault|auth|bearer|refresh|session|security|csrf|"
    r"github|gitlab|slack|bot|wandb|id)[-_]?(?:key|token)\W*$",
    re.IGNORECASE,
)
_PLAIN = re.compile(r"[a-z_]{1,8}\d{0,3}|[\w-]{1,40}\.(?:pt|json|txt|yaml|safetensors)")
LOCAL = re.compile(r"(?:none|null|true|false|auto|localhost|0\.0\.0\.0|127\.\d+\.\d+\.\d+|::1?|\[::1?\]|)(?::\d+)?", re.IGNORECASE)

SECRET_NAME = (
    r"(?:(?i:[\w-]*(?:api[-_]?key|apikey|secret(?:[-_]?(?:key|access[-_]?key))?|passw(?:or)?d|passphrase|credentials?|private[-_]?key(?:[-_]?id)?|access[-_]?key"
    r"(?:[-_]?id)?|account[-_]?key|encryption[-_]?key|signing[-_]?key|admin[-_]?key|subscription[-_]?key|client-(?:key|certificate)-data)|otp"
    r"|(?:[\w-]*[-_])?(?:hf|hub|vault|auth|access|api|bearer|refresh|session|security|csrf|github|gitlab|slack|bot|wandb|id)[-_]?token)"
    r"|[A-Z][A-Z0-9_]*_(?:TOKEN|PAT|PWD|KEY)|[Pp]wd|_auth|(?i:private-token)|[A-Z]*_?(?:AUTH|PIN))"
)
HOST_NAME = (
    r"(?:[\w-]*(?:hostname|host[-_]name|server[-_]name|node[-_]name|nodelist|init[-_]addr|master[-_]addr|base[-_]url|endpoint)"
    r"|MASTER_ADDR|SLURM\w*NODE\w*|--[\w-]*(?:host|addr|address))"
)
# Endings of public names, and those that only inside networks have. Endings that files and code have too (.py, .sh, .pt, .to) are not
# among them: after "://", "@" and --host a name is found without its ending. Words that code ends in (logger.info) need one part more.
_ENDINGS = (
    "com|net|org|edu|gov|mil|io|ai|cloud|biz|xyz|eu|de|fr|uk|ca|cn|jp|kr|nl|ch|au|br|ru|tw|sg|hk|"
    "internal|local|localdomain|lan|corp|intra|intranet|onion|arpa"
)
_WORDS = "info|app|dev|prod|private|cluster|svc|co|tech|intern"
_PUBLIC = re.compile(
    r"(?:(?:docs|www|raw|api|cdn-lfs|developer)\.)?(?:github\.com|githubusercontent\.com|huggingface\.co|hf\.co|arxiv\.org|pytorch\.org|nvidia\.com|readthedocs\.io|"
    r"sglang\.ai|vllm\.ai|lmsys\.org|wikipedia\.org|w3\.org|json-schema\.org|example\.(?:com|org|net))",
    re.IGNORECASE,
)
_HOST = r"[A-Za-z0-9](?:[\w-]*[\w])?"
_TENSOR = re.compile(r"[a-z_]+(?:\.[a-z_]+){0,9}\.\d{1,3}\.(?:co|app|private)")  # model.layers.0.co, cut short
_BEFORE_A_VERSION = re.compile(
    r"(?:[=<>~!]=\s*|\bv|\b(?:version|ver|release|driver|cuda|nccl|cudnn|cublas|torch|sglang|vllm|transformers|python|triton|flashinfer|"
    r"tensorrt(?:[-_]llm)?)['\"]?\s*[:= ]\s*['\"]?v?)$",
    re.IGNORECASE,
)


def _harmless_value(match: re.Match[str]) -> bool:
    """Whether the value is none, a number or a variable; or a word or a file behind a name that keys seldom have (``--sort-key accept``)."""
    value, name, at = match["value"].strip("\"'\\"), match["keep"][-60:], match.start()
    if value.isdigit() and len(value) > 5 and _LONG_NUMBER.search(name):
        return False
    if match.string[max(0, at - 1) : at] == "/" and name.rstrip().endswith(":"):  # /etc/passwd: what is wrong with that file
        return True
    return NO_SECRET.fullmatch(value) is not None or bool(_PLAIN.fullmatch(value) and _SELDOM.search(name) and not _SURE.search(name))


def _local_value(match: re.Match[str]) -> bool:
    return LOCAL.fullmatch(match["value"].strip("\"'")) is not None


def _public_host(match: re.Match[str]) -> bool:
    """Whether everyone knows the name, or it is a number that only ends like one (``0.5.0.dev``)."""
    host = match["host"]
    if not match.groupdict().get("keep") and _TENSOR.fullmatch(host):
        return True
    number = "." in host and not any(c.isalpha() for c in host.rpartition(".")[0])
    return bool(LOCAL.fullmatch(host) or _PUBLIC.fullmatch(host)) or (number and host.rpartition(".")[2].isalpha())


def _no_machine(match: re.Match[str]) -> bool:
    """Whether the digits are a version, or an address that every machine has."""
    return bool(LOCAL.fullmatch(match[0])) or bool(_BEFORE_A_VERSION.search(match.string[max(0, match.start() - 40) : match.start()]))


def _no_ipv6(match: re.Match[str]) -> bool:
    try:
        address = ipaddress.IPv6Address(match[0].partition("%")[0])
    except ValueError:
        return True
    # c10::Half and the like: hexadecimal by chance, in a range that no network has
    return address.is_loopback or address.is_unspecified or (address.is_reserved and "::" in match[0])


def _kind(name: str, pattern: str, reason: str, flags: int = 0, **more: Any) -> Kind:
    return Kind(name, re.compile(pattern, flags), reason, **more)


_ACTS, _WHERE, _WHO = "lets whoever has it act in its owner's name", "tells where services run", "names a person"

KINDS: tuple[Kind, ...] = (
    _kind(
        "private key",
        r"-----BEGIN [A-Z0-9 ]*(?:KEY|CERTIFICATE|MESSAGE)[A-Z ]*-----.*?(?:-----END [A-Z0-9 ]*-----|\Z)|PuTTY-User-Key-File-\d:.*?(?:Private-MAC: \w+|\Z)",
        _ACTS,
        re.DOTALL,
        always=True,
    ),
    _kind(
        "ssh key",
        r"\b(?:ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-[\w-]+) AAAA[\w+/=]{16,}(?: [\w.-]+@[\w.-]+)?",
        "names its owner and their machine",
        always=True,
    ),
    _kind(
        "key",
        r"\b(?:sk-[A-Za-z0-9_-]{16,}|(?:hf|api_org|gsk|r8|npm|do[opr]_v1|shp(?:at|ss|ca|pa)|sbp|sk_org|rpa|tgp_v1|jina|pcsk|ntn|figd|cfut|rnd|vercel)_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|"
        r"gl(?:pat|rt|dt|ptt)-[\w-]{16,}|hf_(?:oauth|jwt)_[\w.-]{16,}|gl(?:sa|c)_\w{16,}|dckr_[op]at_[\w-]{16,}|sntry[su]_[\w-]{16,}|"
        r"(?:csk|tvly|pat-[a-z]{2}\d)-[\w-]{16,}|ATATT3[\w=-]{16,}|(?<=hooks\.zapier\.com/hooks/catch/)[\w/]+|(?<=ntfy\.sh/)[\w-]+|"
        r"(?<=api\.telegram\.org/)bot\d+:[\w-]+|xox[a-z]-[\w-]{10,}|xapp-[\w-]{10,}|A(?:KIA|SIA|GPA|IDA|ROA)[0-9A-Z]{12,}|AIza[\w-]{30,}|ya29\.[\w-]{16,}|"
        r"nvapi-[\w-]{16,}|pypi-[\w-]{16,}|dapi[0-9a-f]{32}|SG\.[\w-]{16,}\.[\w-]{16,}|[rsp]k_(?:live|test)_\w{10,}|\d{8,10}:AA[\w-]{30,}|"
        r"eyJ[\w-]{8,}\.(?:[\w-]{8,}(?:\.[\w-]*){0,3}|(?:\.[\w-]+){2,3})|(?<=hooks\.slack\.com/services/)[\w/]+|AGE-SECRET-KEY-1\w+|"
        r"tskey-[\w-]{16,}|(?:xai|pplx)-\w{20,}|hv[sbr]\.[\w-]{16,}|lsv2_\w{20,}|fw_[A-Za-z0-9]{20,}|GOCSPX-[\w-]{16,}|1//0[\w-]{20,}|"
        r"(?<=/api/webhooks/)[\w/-]+|(?<=\.office\.com/webhook)[\w/@-]+)",
        _ACTS,
        always=True,
    ),
    _kind(
        "key",
        r"(?P<keep>\b(?:Proxy-)?Authorization['\"]?\s*[:=]\s*['\"]?)(?:(?:Digest|AWS4-HMAC-SHA256)\s(?:\\\n|[^\n])+|(?:\w+(?:\\?\s)+)?[\w.~+/=-]+)",
        _ACTS,
        re.IGNORECASE,
        always=True,
    ),
    _kind(
        "key",
        r"(?P<keep>\b(?:Bearer|Basic)(?:\\?\s)+(?=[\w.~+/-]{8}))[\w.~+/=-]+",
        _ACTS,
        re.IGNORECASE,
        always=True,
    ),
    _kind(
        "key",
        r"(?P<keep>\b(?:Set-Cookie|Cookie)['\"]?\s*[:=]\s*['\"]?)[\w.-]+=[^\s;'\"]*(?:;\s*[\w.-]+=[^\s;'\"]*)*",
        "a session's cookie is as good as its password",
        re.IGNORECASE,
        always=True,
    ),
    _kind(
        "key",
        r"(?P<keep>(?<![\w-])--cookie[= ]\s*['\"]?)[\w.-]+=[^\s'\"]+(?:;\s*[\w.-]+=[^\s;'\"]+)*",
        "a session's cookie is as good as its password",
        always=True,
    ),
    _kind(
        "key",
        rf"(?P<keep>\bcurl\b{_LINE}\s-b\s?['\"]?)[\w.-]+=[^\s'\"]+(?:;\s*[\w.-]+=[^\s;'\"]+)*",
        "a session's cookie is as good as its password",
        always=True,
    ),
    _kind(
        "signature",
        r"(?P<keep>://[^\s?'\"<>]{1,500}\?)(?=[^\s'\"<>]{0,2000}\b(?:X-Amz-|X-Goog-|Signature|Sig|token|key|GoogleAccessId|Expires|sv|code)[\w-]*=)[^\s'\"<>]+",
        "opens the address to whoever has it",
        re.IGNORECASE,
        always=True,
    ),
    _kind(
        "key",
        rf"(?P<keep>(?:(?<![\w-])--?|[\u2013\u2014])(?:[\w-]+[-_])?(?:token|secret|(?:api)?key|pass(?:word|wd|phrase)?|credentials?)(?:=|(?:\\?\s)+)(?!--))"
        rf"(?P<value>{_VALUE}{_FURTHER})",
        _ACTS,
        re.IGNORECASE,
        spares=_harmless_value,
        always=True,
    ),
    _kind("key", rf"(?P<keep>(?:(?<![\w-])|(?<=\s-e)){SECRET_NAME}{_IS})(?P<value>{_VALUE})", _ACTS, spares=_harmless_value, always=True),
    _kind(
        "key",
        rf"(?P<keep>(?<![\w#.-])(?:(?i:token|pass|sig|signature|(?:j|php)?sess(?:ion)?_?id)|KEY)=|\b[A-Z][A-Z0-9_]*_(?:TOKEN|KEY|SECRET|PASSWORD)\s+(?=[\w-]{{16}}))(?P<value>{_VALUE})",
        _ACTS,
        spares=_harmless_value,
        always=True,
    ),
    _kind(
        "key",
        r"(?P<keep>\b(?:sshpass\s+-p|wandb\s+login(?:\s+--[\w-]+)*|(?:docker|podman|helm)\s+(?:\w+\s+)?login\s[^\n;|&]{0,200}?\s-p)\s+)(?!\(key)[^\s-]\S*",
        _ACTS,
        always=True,
    ),
    _kind(
        "key",
        rf"(?P<keep>\b(?:(?:mysql\w*|mariadb\w*|sshpass|7z[ar]?)\b{_LINE}\s-p|redis-cli\b{_LINE}\s-a[ ]?|smbclient\b{_LINE}\s-U\s?[^\s%]+%"
        rf"|(?:az\s+login|mongo(?:sh|dump|restore|import|export)?)\b{_LINE}\s-p\s+|ldap\w+\b{_LINE}\s-w\s*|(?:un)?zip\b{_LINE}\s-P\s*"
        rf"|openssl\b{_LINE}\s-k\s+|aws\s+configure\s+set\s+[\w.-]*(?:key|token|secret)[\w-]*\s+|vault\s+(?:kv\s+put|write)\s+\S+\s+[\w-]+="
        r"))(?!\(key)[^\s-]\S*",
        _ACTS,
        always=True,
    ),
    _kind("key", rf"(?P<keep>\b{_ASKS}{_LINE}<<<\s*)(?!\(key)[^\s-]\S*", _ACTS, always=True),
    _kind(
        "key",
        rf"(?P<keep>\b(?:echo|printf)\s+(?:-\w+\s+)?)(?P<value>{_VALUE})(?=\s*\|{_LINE}\b{_ASKS})",
        _ACTS,
        spares=_harmless_value,
        always=True,
    ),
    _kind(
        "key", rf"(?P<keep>\bset\s+(?:-\w+\s+)+{SECRET_NAME}\s+)(?!\(key)(?P<value>{_VALUE})", _ACTS, spares=_harmless_value, always=True
    ),
    _kind("key", r"(?P<keep>\bset\s+(?:-\w+\s+)*[A-Z][A-Z0-9_]*_(?:TOKEN|KEY|SECRET|PASSWORD)\s+)(?!\(key)\S+", _ACTS, always=True),
    _kind(
        "key",
        rf"(?P<keep>\bname['\"]?\s*:\s*['\"]?{SECRET_NAME}['\"]?\s*,?\s*['\"]?value['\"]?\s*:\s*)(?P<value>{_VALUE})",
        _ACTS,
        spares=_harmless_value,
        always=True,
    ),
    _kind(
        "key",
        rf"(?P<keep>(?<![\w-])(?:['\"](?:token|auth)['\"]\s*:\s*|pass\s*[:=]\s*)(?=['\"]?{_RANDOM}))(?P<value>{_VALUE})",
        _ACTS,
        re.IGNORECASE,
        spares=_harmless_value,
        always=True,
    ),
    _kind(
        "key",
        r"(?P<keep>\blogin\(\s*(?:(?:key|token|api_key)\s*=\s*)?)(?P<value>\"[^\"\n]*\"|'[^'\n]*')",
        _ACTS,
        spares=_harmless_value,
        always=True,
    ),
    _kind(
        "key",
        r"(?P<keep>\b(?i:(?:(?:api|secret|access) key|token|password)(?: provided| is)?\s{0,9}(?:[:=]\s{0,9})?['\"]?))"
        r"(?=\S{0,200}\d)(?=\S{0,200}[a-z])(?=\S{0,200}[A-Z])(?P<value>[\w+/=~-]{8,})",
        _ACTS,
        spares=_harmless_value,
        always=True,
    ),
    _kind(
        "login",
        r"(?P<keep>(?<!\S)(?:-u(?=[= ]|\w+:)|--user\b|--proxy-user\b)[= ]?\s*)(?!\d+:\d+)[^\s:'\"]+:\S+|(?P<netrc>\blogin\s+\S+\s+password\s+\S+)",
        "a name with its password",
        always=True,
    ),
    _kind(
        "login",
        r"(?P<keep>\b[a-z][\w+.-]{0,20}://)(?!git@)[^\s/@'\"<>]+(?=@)",
        "a name with its password",
        always=True,
    ),
    _kind(
        "host",
        r"(?P<keep>\b(?!hf:|file:)[a-z][\w+.-]{0,20}://(?:\(login removed\)@|[^\s/@'\"]+@)?)(?P<host>[^\s/:?#'\"<>\])}(,;]+|\[[0-9A-Fa-f:.]+\])",
        _WHERE,
        re.IGNORECASE,
        spares=_public_host,
    ),
    _kind(
        HOME,
        r"\b[A-Za-z]:(?:\\{1,2}|/)(?:Users|Documents and Settings)(?:\\{1,2}|/)(?:[^\\/:*?\"<>|\n]+(?=[\\/])|[^\\/:*?\"<>|\s]+)",
        _WHO,
        re.IGNORECASE,
    ),
    _kind(
        HOME,
        r"(?<![\w.~-])(?:/[\w.-]+){0,4}?/(?:home|users)/[^/\s'\":,;)\]}>]+|(?<![\w.~-])(?:/var)?/root(?![\w.-])",
        _WHO,
        re.IGNORECASE,
    ),
    _kind(HOME, r"(?:%2F(?:home|users)%2F|[A-Z]%3A%5CUsers%5C)[^%/\s'\"&]+", _WHO, re.IGNORECASE),
    _kind(HOME, r"(?<![\w~/])~[A-Za-z][\w.-]*(?=/)", _WHO),
    _kind("host", r"(?<![\w\\:)])\\{2,4}[\w.$-]+(?=\\{1,2}[\w.$-])", "names a file server"),
    _kind(
        "mail address",
        r"(?<![\w.+/@-])[\w.+-]+@(?:[\w-]+\.)+[A-Za-z]{2,}(?![\w-])(?!\.\w)",
        _WHO,
    ),
    _kind(
        "login",
        r"(?<![\w.+/@-])[A-Za-z_][\w.-]*@[A-Za-z0-9][\w-]*(?:\.[\w-]+)*(?!:[0-9a-f]{12})(?![\w@/-])",
        "names a person and a machine",
        spares=lambda match: match[0].rpartition("@")[2] in ("sha256", "main", "master", "latest", "property", "staticmethod"),
    ),
    _kind(
        "user",
        rf"(?P<keep>\b(?:USER(?:NAME)?|LOGNAME|SUDO_USER)=|\b(?:username|user_name|login)['\"]?\s*[=:]\s*|--user(?:name)?[= ]"
        rf"|\b(?:docker|podman|helm)\s[^\n;|&]{{0,200}}?\s-u[= ](?!\d+(?::|\b))|\buid=\d+\()(?P<value>{_VALUE})",
        _WHO,
        spares=_harmless_value,
    ),
    _kind(
        "host",
        rf"(?P<keep>(?<![\w-])(?:{HOST_NAME}(?:['\"]?\s*[=:]\s*|\s+)|host['\"]?\s*=\s*|['\"]host['\"]\s*:\s*))(?P<value>(?!\(|\[?[0-9A-Fa-f.]*[.:][0-9A-Fa-f:.]*\]?(?![\w.-])|\w+://){_VALUE})",
        _WHERE,
        spares=_local_value,
    ),
    _kind(
        "host",
        rf"(?<![\w.@/-])(?P<host>(?:{_HOST}\.)+(?:{_ENDINGS})|(?:{_HOST}\.){{2,}}(?:{_WORDS}))(?![\w-])(?!\.\w)",
        _WHERE,
        re.IGNORECASE,
        spares=_public_host,
    ),
    _kind(
        "host",
        r"(?<![\w./-])(?:ip-\d+-\d+-\d+-\d+|(?:dgx|gpu|node|worker|compute|slurm|hgx)[a-z0-9]*-(?:[a-z0-9]+-)*\d{2,})(?![\w-])",
        _WHERE,
    ),
    _kind(
        "hardware address",
        r"(?<![\w:-])(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}(?![\w:-])|\b(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{27}\b",
        "names one machine",
    ),
    _kind(
        "address",
        r"(?<![\w.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w-]|\.\w)",
        _WHERE,
        spares=_no_machine,
    ),
    _kind("address", r"(?<![\w:.])[0-9A-Fa-f:]{3,39}(?:%\w+)?(?![\w:])", _WHERE, spares=_no_ipv6),
)

"""Ask a running SGLang or vLLM server what it is, send it a few short prompts, and return what was accepted for exactly those."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3diag.errors import BadArgument, UnusableServer
from eagle3diag.serving.answers import PROMPTS, Answer, Probe, Prompts, whole
from eagle3diag.serving.http import Server
from eagle3diag.serving.probe_sglang import probe_sglang, server_info
from eagle3diag.serving.probe_vllm import probe_vllm, server_version

__all__ = ["PROMPTS", "Answer", "Probe", "probe"]


def probe(
    url: str,
    *,
    api_key: str | None = None,
    prompts: Prompts | None = None,
    max_tokens: int = 64,
    timeout: float = 60.0,
) -> Probe:
    """Probe the server at ``url``: one request at a time, greedily, ``max_tokens`` each.

    Parameters
    ----------
    url: ``http://host:port``. Redirects to other hosts are not followed, proxies of the environment are not used.
    api_key: sent as a bearer token to this host only; it is in no result, message or log.
    prompts: texts or lists of token ids; default: eight short built-in texts, sent without a chat template.
    timeout: seconds for each single answer, from the first byte sent to the last received.

    Raises
    ------
    UnusableServer: not reachable, too late, too large, refusing, no SGLang or vLLM, or one that does not say what it accepted.
    BadArgument: no such URL, key, prompts or numbers.
    """
    if not 1 <= max_tokens <= 4096:
        raise BadArgument(f"max_tokens {max_tokens} is not within 1 to 4096", where="probe")
    server = Server.at(url, api_key=api_key, timeout=timeout)
    asked = _checked(prompts)
    info = server_info(server)
    if info is not None:
        return probe_sglang(server, info, asked, max_tokens)
    version = server_version(server)
    if version is not None:
        return probe_vllm(server, version, asked, max_tokens)
    raise UnusableServer(
        "answers, but neither as SGLang (/server_info) nor as vLLM (/version)",
        where=server.url,
        hint="give the URL of the inference server itself",
    )


def _checked(prompts: Prompts | None) -> Prompts | None:
    if prompts is None:
        return None
    if isinstance(prompts, str) or not prompts:
        raise BadArgument("prompts must be a list with at least one", where="probe", hint='such as ["Once upon a time"]')
    for prompt in prompts:
        ids = isinstance(prompt, Sequence) and not isinstance(prompt, str) and all(whole(i) is not None for i in prompt)
        if not prompt or not (isinstance(prompt, str) or ids):
            raise BadArgument("a prompt must be a text or a list of token ids, and not empty", where="probe")
    return prompts

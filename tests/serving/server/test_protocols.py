"""Programs that speak Ollama's or OpenAI's protocol, by their own packages and exact requests."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import httpx
import numpy as np
import ollama
import openai
import pytest

from captioner.captioner import Captioner
from captioner.errors import ConfigError
from captioner_serving.server import service
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.urls import WebPhoto
from tests.conftest import make_tiny, make_trust
from tests.serving.server.conftest import SAMPLES
from tests.serving.server.running import serving
from tests.web import hosting

PHOTO = (SAMPLES / "coffee.jpg").read_bytes()
CODED = base64.b64encode(PHOTO).decode()
URI = f"data:image/jpeg;base64,{CODED}"
KEYWORDS = "captioner-keywords"


@pytest.fixture(scope="module")
def model() -> Captioner:
    trust = replace(make_trust(), word=np.array([3.8, 1.0, 0.0, 0.5], np.float32))
    return Captioner(make_tiny(), device="cpu", trust=trust)  # doubts one of two words


@pytest.fixture(scope="module")
def url(model: Captioner) -> Iterator[str]:
    plain = Captioner(make_tiny(), device="cpu")
    plain.name = "plain"
    with serving(model, ServerConfig(), plain) as address:
        yield address


@pytest.fixture
def api(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=300, verify=False) as client:
        yield client


@pytest.fixture(scope="module")
def words(model: Captioner) -> list[Any]:
    return [*model.caption(PHOTO).words]


@pytest.fixture
def sentence(words: list[Any]) -> str:
    text = " ".join(word.text for word in words)
    return f"{text[0].upper()}{text[1:]}."


@pytest.fixture
def trusted(words: list[Any]) -> dict[str, float]:
    """The words with a trust of 0.55 or more, and that trust."""
    found = {word.text: round(word.trust, 4) for word in words if word.trust >= 0.55}
    assert 0 < len(found) < len({word.text for word in words})  # some are left out
    return found


@pytest.fixture
def by_ollama(url: str) -> Iterator[ollama.Client]:
    with ollama.Client(url) as client:
        yield client


@pytest.fixture
def by_openai(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        yield client


def parts(text: str, *urls: str) -> list[Any]:
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [{"type": "text", "text": text}, *images]}]


# The two packages


def test_ollama_gets_the_sentence_whole_or_in_a_stream(
    api: httpx.Client, by_ollama: ollama.Client, sentence: str
) -> None:
    asked: dict[str, Any] = {"model": "tiny", "prompt": "What is this?", "images": [PHOTO]}
    whole = by_ollama.generate(**asked)
    assert (whole.response, whole.done, whole.done_reason) == (sentence, True, "stop")
    pieces = list(by_ollama.generate(**asked, stream=True))
    assert [(piece.response, piece.done) for piece in pieces] == [(sentence, False), ("", True)]
    messages = [{"role": "user", "content": "What is this?", "images": [PHOTO]}]
    assert by_ollama.chat("tiny:latest", messages).message.content == sentence
    chunks = list(by_ollama.chat("tiny", messages, stream=True))
    assert "".join(chunk.message.content or "" for chunk in chunks) == sentence
    assert chunks[-1].done and chunks[-1].eval_count == len(sentence.split())
    # Without `stream` the answer is one, as of Ollama; durations are in nanoseconds.
    answer = api.post("/api/generate", json={"images": [CODED]})
    assert text_of(answer) == sentence
    duration = json.loads(answer.text.splitlines()[-1])["total_duration"]
    assert 1e5 < duration <= 1e9 * answer.elapsed.total_seconds()


def test_openai_gets_the_sentence_whole_or_in_a_stream(
    by_openai: openai.OpenAI, sentence: str
) -> None:
    create = by_openai.chat.completions.create
    whole = create(model="tiny", messages=parts("What is this?", URI))
    (choice,) = whole.choices
    assert (choice.message.content, choice.finish_reason) == (sentence, "stop")
    assert whole.usage is not None and whole.usage.completion_tokens == len(sentence.split())
    asked: dict[str, Any] = {"model": "tiny", "messages": parts("x", URI), "stream": True}
    chunks = list(create(**asked, stream_options={"include_usage": True}))
    *answered, usage = chunks
    text = [chunk.choices[0].delta.content or "" for chunk in answered]
    assert "".join(text) == sentence
    assert [chunk.choices[0].finish_reason for chunk in answered[-2:]] == [None, "stop"]
    assert usage.choices == [] and usage.usage == whole.usage
    for unasked in {}, {"stream_options": {"include_usage": False}}:
        assert all(chunk.choices for chunk in create(**asked, **unasked))  # clients read the first


def test_both_list_the_models(
    api: httpx.Client, by_ollama: ollama.Client, by_openai: openai.OpenAI
) -> None:
    names = [model.model for model in by_ollama.list().models]
    assert names == ["tiny:latest", "plain:latest", "captioner-keywords:latest"]
    assert [model.name for model in by_ollama.ps().models] == names
    shown = by_ollama.show("plain")
    assert shown.capabilities is not None and "vision" in shown.capabilities
    for key in ("model", "name"):  # older clients send "name"
        assert api.post("/api/show", json={key: "llava"}).status_code == 404
    assert [model.id for model in by_openai.models.list()] == ["tiny", "plain", KEYWORDS]
    assert by_openai.models.retrieve(KEYWORDS).id == KEYWORDS
    assert by_openai.models.retrieve("plain").id == "plain"


def test_a_second_model_name_gives_the_trusted_words(
    by_ollama: ollama.Client, by_openai: openai.OpenAI, trusted: dict[str, float]
) -> None:
    wanted = ", ".join(trusted)
    for name in (KEYWORDS, f"{KEYWORDS}:latest"):
        answer = by_ollama.generate(name, "Describe it.", images=[PHOTO])
        assert (answer.response, answer.model) == (wanted, f"{KEYWORDS}:latest")
    chat = by_openai.chat.completions.create(model=KEYWORDS, messages=parts("Describe it", URI))
    assert (chat.choices[0].message.content, chat.model) == (wanted, KEYWORDS)


# Bad input

BAD: dict[str, tuple[dict[str, Any], int, str]] = {
    "no image": ({"urls": []}, 400, "no image"),
    "two images": ({"urls": [URI, URI]}, 400, "2 images"),
    "an address": ({"urls": ["https://example.org/a.jpg"]}, 403, "does not download"),
    "a large photo": ({"urls": ["A" * 22_000_000]}, 413, "20 MB"),
    "no such model": ({"model": "llava"}, 404, "llava"),
    "no base64": ({"urls": ["photo.jpg"]}, 400, "base64"),
    "no photo": ({"urls": ["AAAA"]}, 415, "not a JPEG"),
    "half a photo": ({"urls": [CODED[: len(CODED) // 8 * 4]]}, 422, "cut off"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_an_error_of_the_protocol(
    api: httpx.Client, by_openai: openai.OpenAI, case: str
) -> None:
    given, status, said = BAD[case]
    model, text, urls = ({"model": "tiny", "text": "x", "urls": [URI]} | given).values()
    turn = {"role": "user", "content": text, "images": urls}
    for path, asked in (
        ("/api/generate", {"prompt": text, "images": urls}),
        ("/api/chat", {"messages": [turn], "stream": False}),
    ):
        answer = api.post(path, json={"model": model, **asked})
        assert answer.status_code == status
        assert said in message(answer)
    with pytest.raises(openai.APIStatusError, match=said) as error:
        by_openai.chat.completions.create(model=model, messages=parts(text, *urls))
    assert error.value.status_code == status
    assert isinstance(error.value.body, dict)
    assert said in error.value.body["message"]
    assert error.value.type == "invalid_request_error"
    assert (error.value.code == "model_not_found") is (status == 404)


def message(answer: httpx.Response) -> str:
    """The message of an error, in the form that the path's protocol has."""
    error = answer.json()["error"]
    assert list(answer.json()) == ["error"]
    assert answer.headers["content-type"] == "application/json"
    if not answer.url.path.startswith("/v1/"):
        return str(error)
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["message"])


TEXT, LIST = {"type": "string"}, {"type": "array", "items": {"type": "string"}}


def test_a_schema_of_a_text_and_a_list_of_keywords_is_filled(
    by_ollama: ollama.Client, by_openai: openai.OpenAI, sentence: str, trusted: dict[str, float]
) -> None:
    for properties, wanted in (
        ({"tags": LIST}, {"tags": [*trusted]}),
        ({"alt": TEXT, "tags": LIST}, {"alt": sentence, "tags": [*trusted]}),
    ):
        schema = {"type": "object", "properties": properties, "required": [*properties]}
        answer = by_ollama.generate("tiny", "x", images=[PHOTO], format=schema)
        assert json.loads(answer.response) == wanted
        form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        chat = by_openai.chat.completions.create(
            model="tiny", messages=parts("x", URI), response_format=form
        )
        assert json.loads(chat.choices[0].message.content or "") == wanted


@pytest.mark.parametrize(
    "properties",
    [{}, {"a": {**TEXT, "enum": ["cat"]}}, {"a": TEXT, "b": TEXT}, {"a": {"type": "object"}}, [1]],
)
def test_any_other_schema_is_refused(api: httpx.Client, properties: Any) -> None:
    schema = {"properties": properties} if properties else {}
    answer = api.post("/api/generate", json={"images": [CODED], "format": schema})
    assert answer.status_code == 400 and "schema" in message(answer)


BREAKS = "\r\n".join(CODED[at : at + 76] for at in range(0, len(CODED), 76))
WAYS = {
    "line breaks, no padding": BREAKS.rstrip("="),
    "no data:": f"image/jpeg;base64,{CODED}",
    "upper case": f"DATA:IMAGE/JPEG;BASE64,{CODED}",
    "two parameters": f"data:image/jpeg;charset=utf-8;base64,{CODED}",
    "no type": f"data:;base64,{BREAKS}\n",
}


@pytest.mark.parametrize("coded", WAYS.values(), ids=WAYS)
def test_base64_is_read_as_others_write_it(api: httpx.Client, sentence: str, coded: str) -> None:
    photo = {"type": "image_url", "image_url": {"url": coded, "detail": None}, "text": None}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/api/generate", {"images": coded, "model": None, "format": None, "prompt": None}),
        ("/api/chat", {"messages": [{"content": None, "images": coded}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": photo}]}),
        ("/v1/chat/completions", {"messages": [{"content": ["hi", photo]}]}),
    ]
    for path, body in bodies:
        assert text_of(api.post(path, json=body)) == sentence


MALFORMED: list[tuple[str, Any, str]] = [
    ("/api/generate", {"prompt": "a" * 20_001, "images": [CODED]}, "at most 20000 characters"),
    ("/v1/chat/completions", {"messages": parts("a" * 20_001, URI)}, "at most 20000 characters"),
    ("/api/chat", b"", "not valid JSON"),
    ("/v1/chat/completions", b"[1]", "must be a JSON object"),
    ("/api/chat", {"stream": "perhaps", "messages": []}, "stream is 'perhaps'"),
    ("/v1/chat/completions", {"messages": [{"content": 7}]}, "a text or a list of parts"),
    ("/v1/chat/completions", {"messages": [[]]}, "messages.0 is []: it should be a valid object"),
    ("/v1/chat/completions", {}, "messages: Field required"),
    ("/api/generate", {"format": "xml"}, "format is 'xml'"),
]


@pytest.mark.parametrize(("path", "body", "said"), MALFORMED)
def test_a_malformed_body_is_an_error_of_the_protocol(
    api: httpx.Client, path: str, body: Any, said: str
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = api.post(path, content=content)
    assert answer.status_code == 400
    assert said in message(answer)
    assert not re.search(r"tuple|dict|instance|\bstr\b|None", message(answer))


def test_a_caption_below_the_minimum_trust_is_an_error(model: Captioner) -> None:
    strict = ServerConfig(minimum_trust=1.0)
    with serving(model, strict) as url, httpx.Client(base_url=url, timeout=300) as client:
        own = client.post("/api/caption", files={"image": PHOTO})
        assert own.status_code == 422 and own.json()["type"] == "low-trust"
        for path, body in {
            "/api/generate": {"images": [CODED]},
            "/v1/chat/completions": {"messages": parts("x", URI)},
        }.items():
            answer = client.post(path, json=body)
            assert answer.status_code == 422 and "minimum is 1" in message(answer)
    with serving(model, ServerConfig(minimum_trust=0.0)) as url:
        assert httpx.post(f"{url}/api/caption", files={"image": PHOTO}, timeout=300).is_success
    plain = Captioner(make_tiny(), device="cpu")
    with pytest.raises(ConfigError, match="needs a trust file"), serving(plain, strict):
        pass


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 503, "memory"),
        (RuntimeError("strange"), 500, "the server failed on the image"),
    ],
)
def test_a_failure_of_the_server_is_an_error_of_the_protocol(
    api: httpx.Client, model: Captioner, monkeypatch: pytest.MonkeyPatch,
    error: Exception, status: int, said: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(model, "caption_prepared", Mock(side_effect=error))
    own = api.post("/api/caption", files={"image": PHOTO})
    assert own.json()["type"] == ("out-of-memory" if status == 503 else "internal-error")
    answers = [
        api.post("/api/generate", json={"prompt": "x", "images": [CODED]}),
        api.post("/v1/chat/completions", json={"messages": parts("x", URI)}),
    ]
    assert all(said in message(answer) for answer in answers)
    for answer in (own, *answers):
        assert answer.status_code == status
        assert ("retry-after" in answer.headers) is (status == 503)
    assert answers[1].json()["error"]["type"] == "server_error"


def test_unknown_paths_and_methods_are_errors_of_the_protocol(api: httpx.Client) -> None:
    for path in ("/v1/embeddings", "/v1/responses", "/api/pull", "/api/blobs/x"):
        answer = api.post(path, json={"model": "tiny"})
        assert answer.status_code == 404 and "/v1/chat/completions" in message(answer)
    for path in ("/v1/chat/completions", "/api/chat"):
        answer = api.get(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        assert "POST" in message(answer)
    assert api.post("/api/nothing").headers["content-type"] == "application/problem+json"


def test_a_token_is_an_api_key(model: Captioner) -> None:
    with serving(model, tokens={"nas": "0123456789abcdef"}) as url:
        with ollama.Client(url) as client, pytest.raises(ollama.ResponseError) as refused:
            client.list()
        assert refused.value.status_code == 401
        with openai.OpenAI(base_url=f"{url}/v1", api_key="0123456789abcdef") as client:
            assert client.models.list().data
            client.api_key = "wrong"
            with pytest.raises(openai.AuthenticationError) as error:
                client.models.list()
            assert error.value.code == "invalid_api_key"


# The exact requests of programs

IMAGE_PART = {"type": "image_url", "image_url": {"url": URI}}
OTHER = base64.b64encode((SAMPLES / "rocket.jpg").read_bytes()).decode()
PROGRAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "PhotoPrism": ("/api/generate", {
        "id": "a7c29f9e", "model": "tiny:latest", "prompt": "Create a caption with one sentence.",
        "suffix": "", "options": {"temperature": 0.1}, "stream": False, "images": [CODED],
    }),
    "LLM Vision: photo and prompt in two messages": ("/api/chat", {
        "model": "tiny", "stream": False, "system": "Label what you see.", "keep_alive": "5m",
        "messages": [{"role": "user", "content": "Image 1:", "images": [CODED]},
                     {"role": "user", "content": "Describe the camera image."}],
        "options": {"num_predict": 100, "temperature": 0.2, "num_ctx": 2048},
    }),
    "Home Assistant: a stream, and a message for the model": ("/api/chat", {
        "model": "tiny:latest", "stream": True, "keep_alive": "-1s", "think": False, "format": None,
        "messages": [{"role": "system", "content": "You label devices."},
                     {"role": "user", "content": "Who is at the door?", "images": [CODED]}],
        "tools": [{"type": "function", "function": {"name": "turn_on", "parameters": {}}}],
    }),
    "Open WebUI: the whole chat with each question": ("/api/chat", {
        "model": "tiny:latest", "stream": True, "options": {},
        "messages": [{"role": "user", "content": "what?", "images": [OTHER]},
                     {"role": "assistant", "content": "Something."},
                     {"role": "user", "content": "and this?", "images": [CODED]},
                     {"role": "assistant", "content": "Something else."},
                     {"role": "user", "content": "and now?"}],
    }),
    "an example for the model": ("/api/chat", {
        "stream": False,
        "messages": [{"role": "system", "content": "As here.", "images": [OTHER]},
                     {"role": "user", "content": "what?", "images": [CODED]}],
    }),
    "TagGUI: no model, text and photo apart": ("/v1/chat/completions", {
        "model": "null", "max_new_tokens": 100, "rep_pen": 1.0, "do_sample": False,
        "messages": [{"role": "system", "content": "You are image captioning expert."},
                     {"role": "user", "content": "Describe the image in one sentence."},
                     {"role": "user", "content": [IMAGE_PART]}],
    }),
    "a long prompt": ("/api/generate", {"prompt": "a" * 20_000, "images": [CODED]}),
    "a URL in place of an object": ("/v1/chat/completions", {
        "messages": [{"role": "user", "content": [{**IMAGE_PART, "image_url": URI}]}],
    }),
}  # fmt: skip


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    if answer.url.path.startswith("/v1/"):
        return str(answer.json()["choices"][0]["message"]["content"])
    lines = [json.loads(line) for line in answer.text.splitlines()]
    return "".join(
        line["response"] if "response" in line else line["message"]["content"] for line in lines
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_requests_of_programs_are_answered(
    api: httpx.Client, sentence: str, program: str
) -> None:
    path, body = PROGRAMS[program]
    assert text_of(api.post(path, json=body)) == sentence


def test_programs_get_json_and_labels(
    api: httpx.Client, sentence: str, trusted: dict[str, float]
) -> None:
    assert api.get("/api/version").json()["version"]
    asked = {"messages": parts("x", URI), "response_format": {"type": "json_object"}}
    answer = json.loads(text_of(api.post("/v1/chat/completions", json=asked)))
    assert answer == {"caption": sentence}
    first = {"messages": [{"role": "user", "content": "what?", "images": [OTHER]}]}
    assert text_of(api.post("/api/chat", json=first)) != sentence
    path, body = PROGRAMS["PhotoPrism"]
    labels = {"model": f"{KEYWORDS}:latest", "format": "json", "system": "Output concise JSON."}
    answer = json.loads(text_of(api.post(path, json=body | labels)))
    assert answer == {
        "labels": [{"name": name, "confidence": trust} for name, trust in trusted.items()]
    }


def test_ollama_run_loads_a_model_first(api: httpx.Client) -> None:
    for path, empty in (("/api/generate", {"prompt": ""}), ("/api/chat", {"messages": []})):
        answer = api.post(path, json={"model": "tiny", **empty})
        assert answer.json()["done_reason"] == "load"
        missing = api.post(path, json={"model": "llava", **empty})
        assert missing.status_code == 404


def test_an_address_is_fetched_where_the_server_may(
    model: Captioner, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "WebPhoto", partial(WebPhoto, trusted_host="127.0.0.1"))
    with (
        hosting(SAMPLES) as address,
        serving(model, ServerConfig(allow_urls=True)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
    ):
        create = client.chat.completions.create
        chat = create(model="tiny", messages=parts("x", f"{address}/coffee.jpg"))
        assert chat.choices[0].message.content == sentence
        with pytest.raises(openai.UnprocessableEntityError, match="status 404"):
            create(model="tiny", messages=parts("x", f"{address}/none.jpg"))

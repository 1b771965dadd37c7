"""URIs have one canonical form; anything else is refused with a helpful message that reveals no secret."""

import pickle
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from storage.kinds import CheckpointURI
from storage.uri import URI, Root, is_name, parse_root, redact, redact_text


@pytest.mark.parametrize(
    ("value", "canonical"),
    [
        ("/", "/"),
        ("//data//./runs/.", "/data/runs"),
        ("/with space/per%20cent/what?/#1", "/with space/per%20cent/what?/#1"),
        ("/mail/a@b/c://d", "/mail/a@b/c:/d"),
        ("FILE:///with%20space/%3F", "/with space/?"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket//a/./b/", "s3://bucket/a/b"),
        ("S3://bucket/Key", "s3://bucket/Key"),
        ("s3://bucket/with space/per%20cent/a@b:c", "s3://bucket/with space/per%20cent/a@b:c"),
    ],
)
def test_each_place_has_one_form(value: str, canonical: str) -> None:
    assert str(URI(value)) == canonical
    assert URI(URI(value)) == canonical


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("data", "must be a path .*got 'data'"),
        ("http://host/data", "must be a path or s3://bucket/prefix, got 'http://host/data'"),
        ("s3:bucket/key", "must be a path"),
        ("file://host/data", "without a host"),
        ("/data/../etc", r"must not contain '\.\.'"),
        ("file:///data/%2e%2e/etc", r"must not contain '\.\.'"),
        ("s3:///key", "needs a bucket name"),
        ("s3://Bucket/key", "needs a bucket name.*'s3://Bucket/key'"),
        ("s3://bucket/key?versionId=1", "no query or fragment"),
        ("s3://AKIA:hidden/hidden+hidden@bucket/key", "a URI must"),
        ("s3://hidden@bucket/key", "a URI must"),
        ("http://user:hidden@host/key?X-Amz-Signature=hidden", "must be a path"),
        ("file:///data#part", "no query or fragment"),
    ],
)
def test_what_is_no_uri_is_refused_without_its_credentials(value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        URI(value)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://host:8265/a b", "http://host:8265/a b"),
        ("https://me:hid den@host/x?key=hid den#hidden", "https://***@host/x"),
        ("host/x?key=hidden", "host/x"),
        ("https://me:hid?den@host/x", "https://***"),
        ("S3:/key:hid/den@bucket/x", "S3:/***@bucket/x"),
        ("key:hid/den@bucket/x", "***@bucket/x"),
        ("/data/2024:x@home/y", "/data/2024:x@home/y"),
    ],
)
def test_address_is_shown_without_credentials_query_and_fragment(url: str, expected: str) -> None:
    assert redact(url) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("return self.head(x)  # logits\nValueError: what? no", "return self.head(x)  # logits\nValueError: what? no"),
        ("no answer from http://127.0.0.1:9000 (a@b)", "no answer from http://127.0.0.1:9000 (a@b)"),
        ("got 's3://key:hidden/hid@den@bucket/x': why?", "got 's3://***@bucket/x': why?"),
        ("a://b:hidden@c and d://hidden@e, # f", "a://***@c and d://***@e, # f"),
        ("a://b:hid den@c?x=1 and d://e", "a://***@c and d://e"),
        ("(https://host/k?X-Amz-Credential=hidden&X-Amz-Signature=hidden): 403", "(https://host/k): 403"),
        ("{'url': \"https://h/x#hidden\", 'is': 1}", "{'url': \"https://h/x\", 'is': 1}"),
        ("GET https://h/x?mail=me@host&key=hidden. End", "GET https://***. End"),
        (
            "Max retries exceeded with url: /x?key=hidden (Caused by y)",
            "Max retries exceeded with url: /x (Caused by y)",
        ),
    ],
)
def test_text_is_shown_whole_except_for_the_secrets_of_its_addresses(text: str, expected: str) -> None:
    assert redact_text(text) == expected


def test_child_lies_below_its_parent_whatever_its_characters() -> None:
    for parent in ("s3://bucket", "s3://bucket/prefix", "/", "/folder"):
        child = URI(parent).child("a #1/what?.png")
        assert (child, child.is_s3) == (f"{parent.rstrip('/')}/a #1/what?.png", parent.startswith("s3"))
        assert (child.name, child.parent.name) == ("what?.png", "a #1")
    assert URI("s3://bucket/checkpoints/mnist-resnet18-0123456789ab").fingerprint == "0123456789ab"
    with pytest.raises(ValueError, match="must not contain"):
        URI("s3://bucket/prefix").child("a/../../other")


def test_typed_root_is_taken_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    typed = {
        "data": f"{tmp_path}/data",
        "./a/../b": f"{tmp_path}/b",
        "~/data": "/home/somebody/data",
        "s3://b-1/x": "s3://b-1/x",
    }
    assert {value: str(parse_root(value)) for value in typed} == typed
    assert type(parse_root("data")) is Root


def test_name_of_small_letters_digits_and_dashes_may_stand_in_a_path() -> None:
    assert all(map(is_name, ["mnist-resnet18", "0", "a" * 64]))
    assert not any(map(is_name, ["", "Mnist", "a/b", "..", "-a", "a_b", "ä", "a\n", "a" * 65]))


class Spec(BaseModel):
    """What holds a URI."""

    model: CheckpointURI | None
    others: dict[str, URI]


def test_a_model_of_pydantic_has_uris_of_the_declared_type_and_writes_them_as_text() -> None:
    spec = Spec.model_validate_json('{"model": "file:///a//b", "others": {"x": "s3://bucket/c/"}}')
    assert (type(spec.model), type(spec.others["x"])) == (CheckpointURI, URI)
    assert spec.model_dump_json() == '{"model":"/a/b","others":{"x":"s3://bucket/c"}}'
    assert Spec.model_validate(spec.model_dump()) == spec
    assert type(Spec.model_validate({"model": Root("/a"), "others": {}}).model) is CheckpointURI
    assert type(pickle.loads(pickle.dumps(spec.model))) is CheckpointURI
    with pytest.raises(ValidationError, match=r"got 's3://\*\*\*@bucket'"):
        Spec.model_validate({"model": None, "others": {"x": "s3://key:secret@bucket"}})

"""Reading a search from a file and flags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from service.cli import strict_yaml
from service.cli.failures import UsageProblem
from service.cli.specfile import Flags, read_spec


def written(tmp_path: Path, text: str, name: str = "search.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.5", 1.5),
        (".5", 0.5),
        ("-3", -3),
        ("010", 10),
        ("true", True),
        ("null", None),
        ("~", None),
        ("", None),
        # What YAML 1.1 would make something else of:
        ("no", "no"),
        ("on", "on"),
        ("2026-11-30", "2026-11-30"),
        ("12:30", "12:30"),
        ("0x1f", "0x1f"),
        ("1_000", "1_000"),
        (".inf", ".inf"),
        (".nan", ".nan"),
    ],
)
def test_scalars_are_those_of_json(text: str, value: object) -> None:
    read = strict_yaml.load(f"a: {text}")["a"]
    assert read == value
    assert type(read) is type(value)


# Beyond this plane JSON escapes a character as two, which YAML does not join.
texts = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]))
# YAML ends the search for a key's colon after 1,024 characters (1.2.2, section 7.4.2), and a character may take six.
keys = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=160)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(keys, inner),
    max_leaves=10,
)


@given(json_values)
def test_json_is_read_as_what_it_is(value: Any) -> None:
    text = json.dumps(value)  # ASCII: YAML refuses control characters that JSON may hold raw
    assert strict_yaml.load(text) == value


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("method: [masktas\ndataset: digits", "line 2, column 8"),
        ("method: masktas\n\tdataset: digits", "line 2, column 1"),
        ("method: masktas\nmethod: scala", "line 2, column 1"),
        ("a: &x 1\nb: *x", "line 2, column 4"),
        ("? [a, b]\n: 1", "line 1, column 3"),
        ("a: !!python/object/apply:os.getpid []", "line 1, column 4"),
        ("a: 2026-01-01\nb: !!timestamp 2026-01-01", "line 2, column 4"),
        ("a: !!binary aGk=", "line 1, column 4"),
        ("a: !!set {b}", "line 1, column 4"),
        ("a: 1\nseed: 1" + "0" * 5000, "line 2, column 7"),
        ("max: 1e999", "line 1, column 6"),
        ("a: !!int x", "line 1, column 4"),
    ],
)
def test_broken_yaml_is_told_with_line_and_column(tmp_path: Path, text: str, where: str) -> None:
    with pytest.raises(UsageProblem, match=r"search\.yaml is not valid YAML") as caught:
        read_spec(written(tmp_path, text))
    assert caught.value.where == where
    assert caught.value.next_step


def test_broken_json_is_told_with_line_and_column(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="not valid JSON") as caught:
        read_spec(written(tmp_path, '{"method":\n "masktas",}', "search.json"))
    assert caught.value.where.startswith("line 2")


@pytest.mark.parametrize("text", ['{"seed": NaN}', '{"seed": Infinity}'])
def test_json_without_numbers_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageProblem, match="no number"):
        read_spec(written(tmp_path, text, "search.json"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"seed": 1, "seed": 2}', "'seed' is given twice"),
        ('{"seed": 1' + "0" * 5000 + "}", "too many digits"),
        ('{"seed": 1e999}', "1e999 is too large"),
    ],
)
def test_json_that_would_be_read_as_something_else_is_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(UsageProblem, match=told):
        read_spec(written(tmp_path, text, "search.json"))


@pytest.mark.parametrize("name", ["search.json", "search.yaml"])
@pytest.mark.parametrize("depth", [100, 100_000])
def test_a_bottomless_file_is_refused(tmp_path: Path, name: str, depth: int) -> None:
    with pytest.raises(UsageProblem, match="nested more than 64 levels"):
        read_spec(written(tmp_path, '{"a":' * depth + "1" + "}" * depth, name))


@pytest.mark.parametrize("name", ["search.json", "search.yaml"])
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path, name: str) -> None:
    assert read_spec(written(tmp_path, '\ufeff{"method": "masktas"}', name)) == {"method": "masktas"}


@pytest.mark.parametrize("text", ["- a\n- b", "just words", "", "3"])
def test_a_file_without_fields_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageProblem, match="not the fields of a search"):
        read_spec(written(tmp_path, text))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="cannot be read: No such file"):
        read_spec(tmp_path / "absent.yaml")


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "search.yaml").write_bytes(b"a: \xff")
    with pytest.raises(UsageProblem, match="not UTF-8"):
        read_spec(tmp_path / "search.yaml")


def test_flags_win_over_the_file_and_leave_the_rest() -> None:
    spec = {
        "method": "masktas",
        "dataset": {"id": "digits", "val_fraction": 0.2},
        "space": {"preset": "micro", "overrides": {"depth": [3]}},
        "constraints": [{"metric": "params_m", "min": 0.01, "max": 0.2}],
        "seed": 1,
    }
    before = json.dumps(spec)
    made = Flags(dataset="ds_1", space="masktas-tiny", max_params_m=0.1, max_gmacs=0.5, seed=2, name="n").apply(spec)
    assert made == {
        "method": "masktas",
        "dataset": {"id": "ds_1", "val_fraction": 0.2},
        "space": {"preset": "masktas-tiny", "overrides": {"depth": [3]}},
        "constraints": [{"metric": "params_m", "min": 0.01, "max": 0.1}, {"metric": "gmacs", "max": 0.5}],
        "seed": 2,
        "name": "n",
    }
    assert json.dumps(spec) == before


def test_a_limit_on_latency_names_its_device() -> None:
    made = Flags(max_latency_ms=12.0, device="dev_1", max_weight_mb=25, max_peak_mem_mb=40).apply({})
    assert made["constraints"] == [
        {"metric": "weight_mb", "max": 25},
        {"metric": "peak_mem_mb", "max": 40},
        {"metric": "latency_ms", "max": 12.0, "device": "dev_1"},
    ]


def test_another_device_takes_the_place_of_that_of_the_file_and_of_its_table() -> None:
    limit = {"metric": "latency_ms", "max": 12.0, "device": "dev_1", "table": {}, "table_digest": "0" * 64}
    made = Flags(device="worker").apply({"constraints": [limit]})
    assert made["constraints"] == [{"metric": "latency_ms", "max": 12.0, "device": "worker"}]
    with pytest.raises(UsageProblem, match="--device says whose latency is limited"):
        Flags(device="worker").apply({"constraints": [{"metric": "gmacs", "max": 1}]})


def test_flags_alone_make_a_search() -> None:
    assert Flags(dataset="digits", method="masktas", max_params_m=0.06).apply({}) == {
        "method": "masktas",
        "dataset": "digits",
        "constraints": [{"metric": "params_m", "max": 0.06}],
    }


@pytest.mark.parametrize(
    ("assignment", "made"),
    [
        ("search.population=20", {"search": {"population": 20}, "list": [{"a": 1}]}),
        ("list.0.a=2", {"search": {}, "list": [{"a": 2}]}),
        ("name=a=b", {"search": {}, "list": [{"a": 1}], "name": "a=b"}),
        ("supernet.lr=1e-3", {"search": {}, "list": [{"a": 1}], "supernet": {"lr": 0.001}}),
        ("search=[1, 2]", {"search": [1, 2], "list": [{"a": 1}]}),
        ("list.0=null", {"search": {}, "list": [None]}),
    ],
)
def test_any_field_can_be_set(assignment: str, made: object) -> None:
    assert Flags(assignments=[assignment]).apply({"search": {}, "list": [{"a": 1}]}) == made


@pytest.mark.parametrize(
    "assignment", ["search.population", "=3", "list.²=1", "a..b=1", "list.5.a=1", "list.a=1", "seed.x=1", "a=[1"]
)
def test_assignments_that_do_not_fit_are_refused(assignment: str) -> None:
    with pytest.raises(UsageProblem):
        Flags(assignments=[assignment]).apply({"list": [1], "seed": 3})


def test_a_limit_does_not_overwrite_a_field_of_another_shape() -> None:
    with pytest.raises(UsageProblem, match="constraints is not a list"):
        Flags(max_gmacs=1.0).apply({"constraints": {"metric": "gmacs"}})


def test_ordinary_yaml_means_the_same_to_other_readers(tmp_path: Path) -> None:
    text = "method: masktas\nsupernet: {epochs: 10, lr: 0.001}\nname: 'a: b'\nlist:\n  - 1\n  - two\n"
    assert read_spec(written(tmp_path, text)) == yaml.safe_load(text)

"""Which entry goes where only so many are kept."""

from __future__ import annotations

from kernelevo_evaluator.newest import Newest


def filled(*keys: str) -> Newest[str, int]:
    found: Newest[str, int] = Newest(3)
    for number, key in enumerate(keys):
        found[key] = number
    return found


def there(found: Newest[str, int]) -> str:
    return "".join(key for key in "abcde" if found.get(key) is not None)


def test_the_oldest_goes() -> None:
    found = filled(*"abcd")
    assert there(found) == "bcd"
    assert len(found) == 3


def test_what_is_used_is_the_newest_and_what_is_looked_at_is_not() -> None:
    found = filled(*"abc")
    assert found.use("a") == 0
    assert found.get("b") == 1
    found["d"] = 3
    assert there(found) == "acd"
    assert found.use("b") is None


def test_a_new_value_stands_where_the_old_one_stood() -> None:
    found = filled(*"abc")
    found["a"] = 7
    assert found.get("a") == 7
    found["d"] = 3
    assert there(found) == "bcd"


def test_what_is_forgotten_makes_room() -> None:
    found = filled(*"abc")
    found.forget("b")
    found.forget("e")
    found["d"] = 3
    assert there(found) == "acd"

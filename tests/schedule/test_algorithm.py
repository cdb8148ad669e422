from pycoll.algorithms import algorithm, get
from pycoll.schedule import ScheduleBuilder, allreduce


def test_an_algorithm_carries_its_name_collective_and_function() -> None:
    ring = get("ring")
    assert (ring.name, ring.collective) == ("ring", allreduce)
    b = ScheduleBuilder(2, 0)
    ring(b)
    assert len(b.steps) == 4
    assert {ring: 1}[ring] == 1


def test_the_digest_follows_the_source() -> None:
    def make(text: str) -> str:
        scope: dict[str, object] = {}
        exec(f"def f(b):\n    {text}", scope)  # has no source file: the bytecode decides
        return algorithm("allreduce")(scope["f"]).digest()  # type: ignore[arg-type]

    assert make("return b") == make("return b")
    assert make("return b") != make("return b.rank")
    assert get("ring").digest() != get("one_shot").digest()
    assert len(get("ring").digest()) == 32

"""Jobs of all pairs of several models, which share one pass."""

from thinkalike.store import open_result


def list_of(minis, names):
    entries = (f"{{model:gelu-3l-mini,path:'{minis}/{name}',name:{name}}}" for name in names)
    return f"models=[{','.join(entries)}]"


def results(done):
    """The results that a command printed, in order."""
    assert done.status == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("results: ")]
    return [open_result(done.folder / line.removeprefix("results: ")) for line in lines]

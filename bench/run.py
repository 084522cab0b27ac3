#!/usr/bin/python3
"""Compares our server with peers on this machine, in turn, with one core for the server and one for the client.

What would make the figures meaningless, and what is done about it:

- Machines drift within minutes: ours and the peer's are measured in turn (A B A B). The result is the median of the
  pairs' ratios, never a single figure. `noise` compares a peer with itself first: a ratio within its spread means
  nothing.
- Unpinned processes vary threefold here: the server is pinned to one core, fio to another.
- Caches answer instead of the disk: offsets are new in each run, volumes that are to miss are 64 times the cache, peers
  bypass the page cache, and our server's counters must prove that it hit or missed.
- Reads of holes cost nothing, and first writes are slow: every volume and file is written in full before.
- Writes are acknowledged before they are on the medium: time runs until a flush is answered, and at least four times
  the cache is written.
- The first run is a warm-up and not counted.
- A debug build, a busy machine, a file system in memory: refused, or noted at the top of the results.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter runs over less data: a first look, not a result")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="one piece of work, or several; --only list names them"
    )
    parser.add_argument("--pairs", type=int, default=5, help="how often each takes its turn (5)")
    parser.add_argument("--dir", type=Path, help="where volumes and files are made and removed (target/)")
    return parser.parse_args()


def main():
    options = arguments()
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    binary = os.environ.setdefault("AEROGEL_BIN", str(target / "release" / "aerogel"))
    import machine
    import report
    import work

    if options.only == ["list"]:
        print("\n".join(f"{name:16} {of.__doc__.splitlines()[0]}" for name, of in work.ALL.items()))
        return 0
    unknown = [name for name in options.only or () if name not in work.ALL]
    if unknown:
        print(f"there is no {unknown[0]}: {', '.join(work.ALL)}", file=sys.stderr)
        return 2

    if not os.access(binary, os.X_OK):
        print(f"{binary} is not there: run `make bench`, which builds it, or set AEROGEL_BIN", file=sys.stderr)
        return 2
    base = options.dir or target
    base.mkdir(exist_ok=True)
    fatal, remarks = machine.objections(binary, base, time.sleep)
    if options.quick or options.pairs < 5:
        remarks.append("quick or few pairs: a first look, not a result")
    for text in remarks:
        machine.warn(f"warning: {text}")
    if fatal:
        for text in fatal:
            machine.warn(f"meaningless: {text}")
        return 1

    lines = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=base) as directory:
        bench = work.Bench(Path(directory), options.pairs, options.quick)
        for name, measure in work.ALL.items():
            if not options.only or name in options.only:
                machine.warn(f"{name}: {measure.__doc__.splitlines()[0]}")
                lines += measure(bench)
    described = machine.describe(base)
    path = ROOT / "bench" / "results" / f"{time.strftime('%Y-%m-%dT%H%M%S')}.json"
    report.write(path, described, remarks, {"quick": options.quick, "pairs": options.pairs}, lines)
    print(", ".join(f"{key.replace('_', ' ')} {value}" for key, value in described.items()))
    print(report.table(lines))
    print(f"all figures: {path.relative_to(ROOT)}")
    return 1 if any(line.reached is False for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())

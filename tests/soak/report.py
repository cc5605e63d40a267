# SPDX-License-Identifier: MIT
# tests/soak/report.py - what a soak found: JSON, a chart, and words
import json
import os

COLOURS = {"rot": "tab:red", "shrink": "tab:orange", "full": "tab:purple", "kill": "black"}


def errors_total(errors):
    return sum(error["count"] for error in errors.values())


def write_json(path, result):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)


def draw(path, result):
    """Memory, descriptors, what is in the stores, errors and faults, over time."""
    import matplotlib  # here: the rest does without
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(4, 1, figsize=(11, 11), sharex=True)
    memory, files, stored, errors = axes
    for name, program in result["programs"].items():
        samples = [sample for sample in program["samples"] if sample["files"]]
        if not samples:
            continue
        seconds = [sample["seconds"] for sample in samples]
        memory.plot(seconds, [sample["memory_bytes"] / 1048576 for sample in samples], label=name)
        files.plot(seconds, [sample["files"] for sample in samples], label=name)
        stored.plot(seconds, [sample["used_bytes"] / 1048576 for sample in samples], label=name)
        errors.step(seconds, [sample["errors"] for sample in samples], where="post", label=name)
    for axis, title in ((memory, "memory, MiB"), (files, "open descriptors"),
                        (stored, "extents in the store after a round, MiB"),
                        (errors, "errors that faults caused, so far")):
        axis.set_ylabel(title)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.set_xlim(left=0)
        axis.legend(loc="center left", fontsize="small")
    for kind, colour in COLOURS.items():
        times = [fault["seconds"] for fault in result["faults"] if fault["kind"] == kind]
        errors.plot(times, [0] * len(times), "|", color=colour, markersize=14,
                    label=f"{kind} ({len(times)})")
    errors.legend(loc="upper left", fontsize="small", ncol=2)
    errors.set_xlabel("seconds")
    memory.set_title(f"soak of {result['seconds'] / 60:.1f} minutes, seed {result['seed']}: " +
                     ("passed" if result["passed"] else f"{len(result['violations'])} violations"))
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def words_of(result):
    lines = [f"  {result['seconds']:.0f} s, SPW_SEED={result['seed']}, "
             f"{result['generations']} stores made"]
    kinds = {}
    for fault in result["faults"]:
        kinds[fault["kind"]] = kinds.get(fault["kind"], 0) + 1
    faults = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    lines.append("  faults     " + faults)
    for name, program in result["programs"].items():
        counts = ", ".join(f"{count} {what.replace('_', ' ')}"
                           for what, count in sorted(program["counts"].items()))
        errors = "".join(f", {kind} {error['count']}"
                         for kind, error in sorted(program["errors"].items()))
        lines.append(f"  {name:10s} {counts}; {errors_total(program['errors'])} errors{errors}")
        growth = program.get("growth")
        if growth and growth["judged"]:
            lines.append(f"  {'':10s} memory {growth['memory_early'] >> 20} -> "
                         f"{growth['memory_late'] >> 20} MiB "
                         f"(allowed + {growth['memory_growth_allowed'] >> 20}), "
                         f"descriptors {growth['files_early']} -> {growth['files_late']}")
        elif growth:
            lines.append(f"  {'':10s} growth not judged: {growth['why']}")
    lines += [f"  VIOLATION  {words}" for words in result["violations"]]
    failed = f"  FAILED: {len(result['violations'])} violations"
    lines.append("  passed" if result["passed"] else failed)
    return "\n".join(lines)


def write(folder, result, with_chart=True):
    os.makedirs(folder, exist_ok=True)
    paths = [os.path.join(folder, "soak.json")]
    write_json(paths[0], result)
    if with_chart:
        paths.append(os.path.join(folder, "soak.png"))
        draw(paths[1], result)
    print(words_of(result))
    print("  " + ", ".join(paths))

"""Commands that start a search, or say what it would be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli import output
from service.cli.connection import DataOption, UrlOption, connect
from service.cli.failures import UsageProblem
from service.cli.jobs import JsonOption, WaitOption, wait_for
from service.cli.specfile import Flags, read_spec

FileArgument = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="YAML or JSON with the fields of a search.", show_default=False)
]
DatasetOption = Annotated[str | None, typer.Option("--dataset", help="Id of a dataset, or the name of a built-in.")]
MethodOption = Annotated[str | None, typer.Option("--method", help="masktas, scala, usnet or separate.")]
SpaceOption = Annotated[
    str | None, typer.Option("--space", help="Name of a search space; `vitailor spaces` lists them.")
]
MaxParamsOption = Annotated[float | None, typer.Option("--max-params-m", help="Limit in million parameters.")]
MaxGmacsOption = Annotated[float | None, typer.Option("--max-gmacs", help="Limit in 10^9 multiply-accumulates.")]
MaxWeightOption = Annotated[float | None, typer.Option("--max-weight-mb", help="Limit in 10^6 bytes of weights.")]
MaxPeakOption = Annotated[
    float | None, typer.Option("--max-peak-mem-mb", help="Limit in 10^6 bytes of weights and live tensors, batch 1.")
]
MaxLatencyOption = Annotated[
    float | None, typer.Option("--max-latency-ms", help="Limit in milliseconds of a call; needs --device.")
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="Whose latency is limited: id of a device, or worker.")
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Same spec and seed: same result.")]
NameOption = Annotated[str | None, typer.Option("--name", help="What to call the job.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Any field: --set search.population=20")
]


def search(
    file: FileArgument = None,
    dataset: DatasetOption = None,
    method: MethodOption = None,
    space: SpaceOption = None,
    max_params_m: MaxParamsOption = None,
    max_gmacs: MaxGmacsOption = None,
    max_weight_mb: MaxWeightOption = None,
    max_peak_mem_mb: MaxPeakOption = None,
    max_latency_ms: MaxLatencyOption = None,
    device: DeviceOption = None,
    seed: SeedOption = None,
    name: NameOption = None,
    assignments: SetOption = None,
    wait: WaitOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    data: DataOption = None,
) -> None:
    """Start a search from a file, from flags, or from a file with flags that win over it."""
    flags = Flags(
        dataset=dataset,
        method=method,
        space=space,
        max_params_m=max_params_m,
        max_gmacs=max_gmacs,
        max_weight_mb=max_weight_mb,
        max_peak_mem_mb=max_peak_mem_mb,
        max_latency_ms=max_latency_ms,
        device=device,
        seed=seed,
        name=name,
        assignments=assignments or (),
    )
    spec = _spec(file, flags)
    with connect(url, data) as client:
        job = client.search(spec)
        if as_json:
            output.print_json(job)
        else:
            print(job.id)
        if wait:
            wait_for(client, job.id)
        elif not as_json:
            print(
                f"next: `vitailor job {job.id} --wait` shows how it goes, "
                f"`vitailor download {job.id}` fetches the result"
            )


def validate(
    file: FileArgument = None,
    dataset: DatasetOption = None,
    method: MethodOption = None,
    space: SpaceOption = None,
    max_params_m: MaxParamsOption = None,
    max_gmacs: MaxGmacsOption = None,
    max_weight_mb: MaxWeightOption = None,
    max_peak_mem_mb: MaxPeakOption = None,
    max_latency_ms: MaxLatencyOption = None,
    device: DeviceOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    data: DataOption = None,
) -> None:
    """Check a search without starting it: what it would be in full, which costs are reachable, and what it takes."""
    flags = Flags(
        dataset=dataset,
        method=method,
        space=space,
        max_params_m=max_params_m,
        max_gmacs=max_gmacs,
        max_weight_mb=max_weight_mb,
        max_peak_mem_mb=max_peak_mem_mb,
        max_latency_ms=max_latency_ms,
        device=device,
        assignments=assignments or (),
    )
    spec = _spec(file, flags)
    with connect(url, data) as client:
        answer = client.validate(spec)
    if as_json:
        output.print_json(answer)
    else:
        _print_validation(answer)


def _spec(file: Path | None, flags: Flags) -> dict[str, Any]:
    spec = flags.apply(read_spec(file) if file is not None else {})
    if not spec:
        raise UsageProblem(
            "there is nothing to search for",
            allowed="a FILE, or at least --dataset and --method",
            next_step="try `vitailor search --dataset digits --method masktas --wait`",
        )
    return spec


def _print_validation(answer: dict[str, Any]) -> None:
    feasible = answer["feasible"]
    what = "widths" if answer.get("widths") else "architectures"
    print(f"valid: {feasible['architectures']:,} of {feasible['space_size']:,} {what} meet all limits")
    for span in answer["reachable"]:
        print(f"  {span['metric']} from {span['min']:.6g} to {span['max']:.6g} is reachable")
    for line in forecast_lines(answer.get("estimate")):
        print(f"  {line}")
    for warning in answer["warnings"]:
        print(f"  warning at {warning['pointer'] or '/'}: {warning['detail']}")


def forecast_lines(estimate: dict[str, Any] | None) -> list[str]:
    """What a search will take, a line for each figure."""
    if estimate is None:
        return ["no estimate yet: no worker has measured its speed, which an idle one does within a minute"]
    wall, hours = estimate["wall_seconds"], estimate["device_hours"]
    return [
        f"takes about {output.duration(wall['likely'])} on an idle worker "
        f"({output.duration(wall['low'])} to {output.duration(wall['high'])}), {hours['likely']:.2g} device-hours",
        *(
            f"{what} about {estimate[field]['likely']:,.0f} MB "
            f"({estimate[field]['low']:,.0f} to {estimate[field]['high']:,.0f})"
            for what, field in (("memory", "memory_mb"), ("disk", "disk_mb"))
        ),
    ]

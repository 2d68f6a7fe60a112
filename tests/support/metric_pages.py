"""Reading the metrics page of a simulated server."""

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from epp.simulator.telemetry import Telemetry


def parsed(page: bytes) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(page.decode())}


def values(sut: Telemetry, name: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a family, by those labels that tell them apart."""
    return {
        tuple(
            value for label, value in sample.labels.items() if label not in {"model_name", "engine"}
        ): sample.value
        for sample in parsed(sut.page())[f"vllm:{name}"].samples
        if not sample.name.endswith("_created")
    }


def histogram(sut: Telemetry, name: str) -> tuple[float, float]:
    """Return how many values a histogram saw, and their sum, rounded for comparison."""
    samples = {
        sample.name.rpartition("_")[2]: sample.value
        for sample in parsed(sut.page())[f"vllm:{name}"].samples
        if not sample.name.endswith("_bucket")
    }
    return samples["count"], round(samples["sum"], 9)

"""What the simulated engine counts, under vLLM's names and labels."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from replicas.engines.sim_load import SimLoad
from replicas.sim.answers import Usage

LABELS = ("model_name", "engine")
_FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10)
_BETWEEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5)
_REQUEST_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480)
_TOKENS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))


class SimMetrics:
    """Follows one engine's answers, in a registry of its own."""

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model, "engine": "0"}
        self._running = self._gauge("num_requests_running", "Requests in passes.")
        self._waiting = self._gauge("num_requests_waiting", "Requests in the queue.")
        self._usage = self._gauge("kv_cache_usage_perc", "Share of the blocks in use, 0 to 1.")
        self._preemptions = self._counter("num_preemptions", "Sequences that had to start anew.")
        self._queries = self._counter("prefix_cache_queries", "Prompt tokens looked up.")
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens found in the cache.")
        self._prompt = self._counter("prompt_tokens", "Prompt tokens.")
        self._generated = self._counter("generation_tokens", "Output tokens.")
        self._success = Counter(
            "vllm:request_success",
            "Requests that ended.",
            (*LABELS, "finished_reason"),
            registry=self.registry,
        )
        self._first_token_s = self._histogram("time_to_first_token_seconds", _FIRST_TOKEN_S)
        self._between_s = self._histogram("inter_token_latency_seconds", _BETWEEN_S)
        self._request_s = self._histogram("e2e_request_latency_seconds", _REQUEST_S)
        self._prompt_tokens = self._histogram("request_prompt_tokens", _TOKENS)
        self._output_tokens = self._histogram("request_generation_tokens", _TOKENS)
        self._preemptions_seen = 0

    def token(self, waited_s: float, is_first: bool) -> None:
        (self._first_token_s if is_first else self._between_s).observe(waited_s)

    def ended(self, usage: Usage, finish_reason: str, duration_s: float) -> None:
        self._queries.inc(usage.prompt_tokens)
        self._hits.inc(usage.cached_tokens)
        self._prompt.inc(usage.prompt_tokens)
        self._generated.inc(usage.completion_tokens)
        self._success.labels(**self._labels, finished_reason=finish_reason).inc()
        self._request_s.observe(duration_s)
        self._prompt_tokens.observe(usage.prompt_tokens)
        self._output_tokens.observe(usage.completion_tokens)

    def export(self, load: SimLoad) -> bytes:
        """In Prometheus's text format, with what the engine holds now."""
        self._running.set(load.running)
        self._waiting.set(load.waiting)
        self._usage.set(load.kv_usage)
        self._preemptions.inc(load.preemptions - self._preemptions_seen)
        self._preemptions_seen = load.preemptions
        return generate_latest(self.registry)

    def _gauge(self, name: str, help_: str) -> Gauge:
        return Gauge(f"vllm:{name}", help_, LABELS, registry=self.registry).labels(**self._labels)

    def _counter(self, name: str, help_: str) -> Counter:
        counter = Counter(f"vllm:{name}", help_, LABELS, registry=self.registry)
        return counter.labels(**self._labels)

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(f"vllm:{name}", name, LABELS, registry=self.registry, buckets=buckets)
        return histogram.labels(**self._labels)

"""What may change while the application runs: policy, rules, deadlines, what is shown of decisions.

It comes as the ingress's `user_config`, so that a change restarts no replica and costs no cache.
"""

from dataclasses import dataclass

from pydantic import ValidationError

from router.configuration import RoutingConfig, configuration_error
from router.policies.registry import make_policy
from router.rules import PolicyConfig, WorkloadRules
from router.serve.link_settings import LinkSettings


@dataclass(frozen=True, slots=True)
class Tuned:
    """One version of the settings, checked as a whole."""

    config: RoutingConfig
    rules: WorkloadRules
    link: LinkSettings


def tuned(config: RoutingConfig) -> Tuned:
    """Raises `ConfigurationError` naming the key."""
    default = PolicyConfig(policy=config.policy, parameters=config.parameters)
    make_policy(default.spec())  # names the key as it stands in the file
    rules = WorkloadRules(config.rules, default)
    link = LinkSettings(
        deadline_s=config.index_deadline_ms / 1000,
        misses_to_open=config.index_misses_to_open,
        probe_interval_s=config.index_probe_interval_s,
    )
    return Tuned(config, rules, link)


def parse_tuning(raw: object) -> Tuned:
    """What `raw`, the parsed YAML under `user_config`, says. Raises `ConfigurationError`."""
    try:
        return tuned(RoutingConfig.model_validate(raw))
    except ValidationError as error:
        raise configuration_error(error, root="user_config") from error


class Tuning:
    """The version in force. Requests read it once each."""

    def __init__(self) -> None:
        self.current = tuned(RoutingConfig())

"""A Serve config file, read and checked as a whole before anything starts."""

import ipaddress
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import BaseModel, ValidationError
from ray.serve.schema import HTTPOptionsSchema, ServeApplicationSchema, ServeDeploySchema

from replicas.engines.vllm.arguments import validate_engine_args
from router.configuration import AppConfig, configuration_error, parse_config
from router.core.errors import ConfigurationError
from serve_app.auth import check_auth
from serve_app.tuning import parse_tuning

INGRESS = "Ingress"
"""The deployment whose `user_config` is ours; `serve_app.app` gives it that name."""
IMPORT_PATH = "serve_app.app:build"
"""What an application's `import_path` must be for its `args` to be ours."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """Where Serve will listen, and the file's applications that are Warmpath's, by name.

    `tunings` are their ingresses' `user_config`s, where the file has one.
    """

    path: Path
    host: str
    port: int
    apps: dict[str, AppConfig]
    tunings: dict[str, object]

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the port."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def read_config_file(path: Path) -> ConfigFile:
    """Parses and types the file. Raises `ConfigurationError` naming the first offending key."""
    raw = _load(path)
    try:
        schema = ServeDeploySchema.model_validate(raw)
    except ValidationError as error:
        raise configuration_error(error, root=str(path)) from error
    for key in _ignored_keys(raw):
        raise ConfigurationError(key, "unknown key, which Serve would ignore")
    apps = {
        application.name: _app(application.name, application.args)
        for application in schema.applications
        if application.import_path == IMPORT_PATH
    }
    if not apps:
        raise ConfigurationError("applications", f"none has the import_path {IMPORT_PATH}")
    tunings = {
        application.name: deployment.user_config
        for application in schema.applications
        for deployment in application.deployments
        if application.name in apps
        and deployment.name == INGRESS
        and "user_config" in deployment.model_fields_set
    }
    return ConfigFile(path, schema.http_options.host, schema.http_options.port, apps, tunings)


def check(file: ConfigFile, environ: Mapping[str, str] = os.environ) -> None:
    """Everything that would end the start: engine arguments, keys, secret and `user_config`.

    Starts nothing.
    """
    for name, user_config in file.tunings.items():
        with _below(f"applications.{name}.{INGRESS}.user_config"):
            parse_tuning(user_config)
    for app in file.apps.values():
        for model in app.models:
            validate_engine_args(model)
        check_auth(app.auth, environ)


def check_closed(file: ConfigFile) -> None:
    """Refuses a port that a network can reach while some application lets everyone in."""
    for name, app in file.apps.items():
        has_keys = app.auth.keys_file is not None or app.auth.keys_env is not None
        if not (file.is_local or has_keys):
            raise ConfigurationError(
                "http_options.host",
                f"{file.host} opens the application {name!r} to the network without API keys; "
                "set auth.keys_file (see `warmpath keys add`) or bind 127.0.0.1",
            )


def _load(path: Path) -> object:
    try:
        return yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(str(path), "cannot be read") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(str(path), f"is not YAML: {error}") from error


def _ignored_keys(raw: object) -> Iterator[str]:
    """Serve drops what it does not know: a misspelt `http_options` would open every interface."""
    if not isinstance(raw, dict):
        return
    yield from _unknown(raw, ServeDeploySchema, "")
    yield from _unknown(raw.get("http_options"), HTTPOptionsSchema, "http_options.")
    for index, application in enumerate(raw["applications"]):
        yield from _unknown(application, ServeApplicationSchema, f"applications[{index}].")


def _unknown(section: object, schema: type[BaseModel], prefix: str) -> Iterator[str]:
    if isinstance(section, dict):
        yield from (f"{prefix}{key}" for key in section if key not in schema.model_fields)


def _app(name: str, args: object) -> AppConfig:
    with _below(f"applications.{name}.args"):
        return parse_config(args)


@contextmanager
def _below(place: str) -> Iterator[None]:
    """Errors name their key by its place in the file."""
    try:
        yield
    except ConfigurationError as error:
        reason = error.message.removeprefix(f"{error.key}: ")
        raise ConfigurationError(f"{place}.{error.key}", reason) from error

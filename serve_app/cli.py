"""The command `warmpath`: what a user does outside Serve's own commands."""

import argparse
import hashlib
import os
import re
import secrets
import stat
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from router.core.errors import ConfigurationError
from serve_app.contexts.cli import add_contexts

_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; 0 when it did its work, 2 when the configuration is at fault."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.command(options)
    except ConfigurationError as error:
        print(f"warmpath: {error}", file=sys.stderr)
        return 2
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="warmpath", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve a config in the foreground, on the fast path")
    serve.add_argument("config", type=Path)
    serve.set_defaults(command=_serve)

    check = commands.add_parser("check", help="check a config without starting anything")
    check.add_argument("config", type=Path)
    check.set_defaults(command=_check)

    keys = commands.add_parser("keys", help="API keys").add_subparsers(
        required=True, metavar="ACTION"
    )
    add = keys.add_parser("add", help="print a fresh key once, and add its digest to the file")
    add.add_argument("tenant", type=_tenant)
    add.add_argument("--file", type=Path, required=True, help="the config's auth.keys_file")
    add.set_defaults(command=_add_key)

    secret = commands.add_parser("secret", help="the server secret").add_subparsers(
        required=True, metavar="ACTION"
    )
    fresh = secret.add_parser("new", help="make the config's auth.secret_file")
    fresh.add_argument("file", type=Path)
    fresh.set_defaults(command=_make_secret)

    index = commands.add_parser("index", help="block indexes").add_subparsers(
        required=True, metavar="ACTION"
    )
    remove = index.add_parser("remove", help="stop the index that a removed application left")
    remove.add_argument("application")
    remove.add_argument("model")
    remove.add_argument("--address", default="auto", help="the Ray cluster's, as ray.init takes it")
    remove.set_defaults(command=_remove_index)

    replay = commands.add_parser("replay", help="try policies on a workload, without a cluster")
    _add_replay(replay)

    add_contexts(commands)
    return parser


def _add_replay(parser: argparse.ArgumentParser) -> None:
    from serve_app.replay_command import add_arguments, run

    add_arguments(parser)
    parser.set_defaults(command=run)


def _serve(options: argparse.Namespace) -> int:
    from serve_app.config_file import check, check_closed, read_config_file
    from serve_app.launch import serve_config

    file = read_config_file(options.config)
    check_closed(file)
    check(file)
    return serve_config(file, partial(print, flush=True))


def _check(options: argparse.Namespace) -> int:
    from serve_app.config_file import check, read_config_file

    file = read_config_file(options.config)
    check(file)
    for name, app in file.apps.items():
        models = ", ".join(f"{model.name} ({model.engine})" for model in app.models)
        print(f"{options.config}: {name} on {file.host}:{file.port} serves {models}")
    if not file.is_local:
        print(f"{options.config}: {file.host} can be reached from the network")
    return 0


def _add_key(options: argparse.Namespace) -> int:
    """The key itself is printed and never stored."""
    key = f"wp-{secrets.token_urlsafe(32)}"
    line = f"{options.tenant}:{hashlib.sha256(key.encode()).hexdigest()}\n"
    descriptor = _open_private(options.file, os.O_APPEND | os.O_CREAT)
    with open(descriptor, "a") as file:
        file.write(line)
    print(key)
    return 0


def _make_secret(options: argparse.Namespace) -> int:
    """Refuses an existing file: another secret would give every tenant another cache."""
    descriptor = _open_private(options.file, os.O_EXCL | os.O_CREAT)
    with open(descriptor, "w") as file:
        file.write(f"{secrets.token_hex(32)}\n")
    print(f"{options.file}: made; keep it, and give every node the same")
    return 0


def _remove_index(options: argparse.Namespace) -> int:
    """1 where there was none."""
    import ray

    from router.serve.generations import remove_index

    ray.init(options.address, log_to_driver=False, logging_level="error")
    removed = remove_index(options.application, options.model)
    print(f"{options.application}, {options.model}: {removed} index actors stopped")
    return 0 if removed else 1


def _open_private(path: Path, flags: int) -> int:
    """A descriptor to write to a file of mode 0600; refuses one that others may read."""
    try:
        descriptor = os.open(path, os.O_WRONLY | flags, 0o600)
    except OSError as error:
        raise ConfigurationError(str(path), f"cannot be written: {error.strerror}") from error
    if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
        os.close(descriptor)
        raise ConfigurationError(str(path), "must be readable by its owner only (chmod 600)")
    return descriptor


def _tenant(text: str) -> str:
    if not _TENANT.fullmatch(text):
        raise argparse.ArgumentTypeError("letters, digits, '.', '_' and '-', at most 64")
    return text


if __name__ == "__main__":
    sys.exit(main())

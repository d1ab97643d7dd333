"""What all parts of the configuration have in common."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the configuration: frozen, and closed against unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

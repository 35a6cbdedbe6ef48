"""One YAML file of fields, read strictly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from kit.errors import SpecError


class _OneOfEach(yaml.SafeLoader):
    """YAML lets a second `serve:` replace the first without a word; here it is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        written = [key.value for key, _ in node.value]
        twice = [key for key, _ in node.value if written.count(key.value) > 1 and key.tag != "tag:yaml.org,2002:merge"]
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[-1].value} is written twice",
                                                    twice[-1].start_mark)
        return super().construct_mapping(node, deep)


def mapping(path: Path) -> dict[str, Any]:
    """A YAML file's fields."""
    try:
        data = yaml.load(path.read_text(), _OneOfEach)
    except OSError as e:
        raise SpecError(f"cannot read the config: {e.strerror}", where=str(path),
                        next="check the path; ready ones are in configs/") from None
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise SpecError(f"not YAML: {' '.join(str(e).split())}", where=str(path), next="mend that line") from None
    if not isinstance(data, dict):
        raise SpecError("a config is a mapping of fields", where=str(path), next="see configs/laptop.yaml")
    return data

"""As much of a model's config as the context check needs."""

import json
import os


def read(folder):
    try:
        with open(os.path.join(folder, "config.json")) as f:
            return json.load(f)
    except FileNotFoundError:
        raise OSError(f"{folder} does not appear to have a file named config.json. Checkout "
                      f"'https://huggingface.co/{folder}/tree/main' for available files.") from None


class ModelConfig:
    def __init__(self, model_path, trust_remote_code=True, context_length=None, dtype="auto", is_draft_model=False):
        self.hf_config = read(model_path)
        inner = self.hf_config.get("text_config") or {}
        derived = self.hf_config.get("max_position_embeddings") or inner.get("max_position_embeddings") or 2048
        if context_length and context_length > derived:
            whose = "Warning: Target model's" if is_draft_model else "Warning: User-specified"
            message = (f"{whose} context_length ({context_length}) is greater than the derived context_length "
                       f"({derived}). This may lead to incorrect model outputs or CUDA errors.")
            if os.environ.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "").lower() not in ("1", "true"):
                raise ValueError(message + " Note that the derived context_length may differ from max_position_"
                                 "embeddings in the model's config. To allow overriding this maximum, set the env var "
                                 "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1")
        self.context_len = context_length or derived

"""A vision-language model of the test's own: the architecture of SmolVLM (Idefics3), tiny; it sees nothing right.

Its weights are made by chance here and not by vLLM, and are large, so that an answer depends on the picture. Not LLaVA
or Qwen-VL: vLLM's code for those needs torchvision, which the CPU set-up leaves out.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path

_IMAGE_PIXELS = 56
_PATCH_PIXELS = 14
_MERGED = 2
_IMAGE, _END = "<image>", "</s>"
_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: "
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% else %}<image>{% endif %}"
    "{% endfor %}{% endif %}\n{% endfor %}assistant:"
)


def make_vision_model(folder: Path) -> Path:
    """Write config, weights, tokenizer, image processor and chat template to `folder`."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration, PreTrainedTokenizerFast
    from transformers.models.idefics3 import Idefics3ImageProcessorPil, Idefics3Processor

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=_END, pad_token=_END)
    fast.add_special_tokens({"additional_special_tokens": ["<fake_token_around_image>", _IMAGE, "<global-img>"]})
    edge = {"longest_edge": _IMAGE_PIXELS}
    processor = Idefics3Processor(
        Idefics3ImageProcessorPil(size=edge, max_image_size=edge, do_image_splitting=False),
        fast,
        image_seq_len=(_IMAGE_PIXELS // _PATCH_PIXELS // _MERGED) ** 2,
        chat_template=_TEMPLATE,
    )
    processor.save_pretrained(folder)
    small = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Idefics3Config(
        vision_config=small | {"image_size": _IMAGE_PIXELS, "patch_size": _PATCH_PIXELS, "initializer_range": 0.3},
        text_config=small
        | {"model_type": "llama", "vocab_size": len(fast), "num_key_value_heads": 2, "initializer_range": 0.3}
        | {"max_position_embeddings": 512, "eos_token_id": fast.eos_token_id, "pad_token_id": fast.pad_token_id},
        image_token_id=fast.convert_tokens_to_ids(_IMAGE),
        pad_token_id=fast.pad_token_id,
        scale_factor=_MERGED,
        tie_word_embeddings=False,
        torch_dtype="float32",
    )
    torch.manual_seed(7)
    Idefics3ForConditionalGeneration(config).save_pretrained(folder)
    return folder


def picture(colour: tuple[int, int, int]) -> bytes:
    """A PNG file of one colour."""
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (20, 12), colour).save(stream, "PNG")
    return stream.getvalue()


def data_url(image: bytes) -> str:
    """`image` inside a URL."""
    return "data:image/png;base64," + base64.b64encode(image).decode()

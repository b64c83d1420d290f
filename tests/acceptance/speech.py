"""A speech model of the test's own: Whisper's architecture, two layers, weights by chance; it hears nothing right."""

from __future__ import annotations

import io
import json
import math
import struct
import wave
from pathlib import Path

_LANGUAGES = ("en", "de", "fr", "es")
_SPECIAL = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{language}|>" for language in _LANGUAGES),
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
    *(f"<|{step * 0.02:.2f}|>" for step in range(1501)),
)


def make_speech_model(folder: Path) -> Path:
    """Write config, tokenizer and feature extractor to `folder`; the weights are vLLM's to make up."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperTokenizerFast

    folder.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = WhisperTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=_SPECIAL[0],
        eos_token=_SPECIAL[0],
        unk_token=_SPECIAL[0],
        pad_token=_SPECIAL[0],
    )
    fast.add_special_tokens({"additional_special_tokens": list(_SPECIAL[1:])})
    fast.save_pretrained(folder)
    extractor = WhisperFeatureExtractor(feature_size=80)
    extractor.save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps({"processor_class": "WhisperProcessor"}))
    ids = {token: fast.convert_tokens_to_ids(token) for token in _SPECIAL[:2]}
    WhisperConfig(
        vocab_size=len(fast),
        num_mel_bins=80,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        d_model=64,
        max_source_positions=1500,
        max_target_positions=448,
        decoder_start_token_id=ids[_SPECIAL[1]],
        bos_token_id=ids[_SPECIAL[0]],
        eos_token_id=ids[_SPECIAL[0]],
        pad_token_id=ids[_SPECIAL[0]],
        begin_suppress_tokens=None,
        suppress_tokens=None,
        architectures=["WhisperForConditionalGeneration"],
        torch_dtype="float32",
    ).save_pretrained(folder)
    return folder


def tone(seconds: float = 1.0, *, hertz: float = 440.0) -> bytes:
    """A WAV file: one tone, 16 kHz, 16 bits."""
    samples = [int(12_000 * math.sin(2 * math.pi * hertz * at / 16_000)) for at in range(int(16_000 * seconds))]
    stream = io.BytesIO()
    with wave.open(stream, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16_000)
        sound.writeframes(struct.pack(f"<{len(samples)}h", *samples))
    return stream.getvalue()

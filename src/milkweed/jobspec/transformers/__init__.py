"""The transformers that milkweed brings."""

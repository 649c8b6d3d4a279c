"""Language: metrics of strings, of tokens and of sequences of them."""

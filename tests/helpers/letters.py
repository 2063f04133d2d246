"""A tokenizer of which every letter is a token."""

import tiny

CONTEXT, EOS, BOS = 16, 0, 1


class Letters:
    """A tokenizer whose tokens are code points, and which counts how often it is called."""

    bos_token_id, eos_token_id, sep_token_id = BOS, EOS, None
    convert_ids_to_tokens = staticmethod(chr)

    def __init__(self, **changes):
        self.calls = 0
        self.__dict__.update(changes)

    def get_vocab(self):
        return {chr(code): code for code in range(2, 128)}

    def __call__(self, texts, add_special_tokens, verbose):
        assert not add_special_tokens
        self.calls += 1
        return {"input_ids": [[ord(letter) for letter in text] for text in texts]}


def texts(count=60, first=0, words=12) -> list[str]:
    return [tiny.document(first + number, words=words) for number in range(count)]

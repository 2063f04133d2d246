"""The grammar of controlled English sentences: lexicon, phrases, sentences."""

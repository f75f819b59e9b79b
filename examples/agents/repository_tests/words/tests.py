import unittest

from words import longest


class Words(unittest.TestCase):
    def test_the_longest_word(self):
        self.assertEqual(longest("a long word"), "long")

    def test_no_words(self):
        self.assertEqual(longest("  "), "")

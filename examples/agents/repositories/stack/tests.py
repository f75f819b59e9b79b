import unittest

from stack import Stack


class Items(unittest.TestCase):
    def test_the_newest_comes_first(self):
        stack = Stack()
        for item in (1, 2, 3):
            stack.push(item)
        self.assertEqual([stack.pop(), stack.pop()], [3, 2])

import unittest

from calendar_rules import leap_year


class LeapYears(unittest.TestCase):
    def test_every_fourth_year_but_not_every_century(self):
        self.assertEqual([leap_year(year) for year in (1896, 1897, 1900, 2000)], [True, False, False, True])

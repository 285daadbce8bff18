import unittest

from marks import average, best
from report import report


class MarksTest(unittest.TestCase):
    def test_the_average(self):
        self.assertEqual(average([4, 5, 6]), 5)

    def test_the_average_of_no_marks(self):
        self.assertEqual(average([]), 0)

    def test_the_best(self):
        self.assertEqual(best([4, 6, 5]), 6)

    def test_the_best_of_no_marks(self):
        self.assertEqual(best([]), 0)


class ReportTest(unittest.TestCase):
    def test_a_line_for_each_pupil(self):
        lines = report({"Bo": [5, 6], "Al": [3]}).splitlines()
        self.assertEqual(lines, ["Al: 3.0 (best 3), not passed", "Bo: 5.5 (best 6), passed"])


if __name__ == "__main__":
    unittest.main()

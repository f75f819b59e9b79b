"""Trajectory review: self-contained HTML pages."""

from roll.viewer.page import trajectory_page_path, write_trajectory_page
from roll.viewer.pages import write_index, write_pages

__all__ = ["trajectory_page_path", "write_index", "write_pages", "write_trajectory_page"]

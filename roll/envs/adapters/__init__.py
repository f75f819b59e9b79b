"""Environments of other libraries, each in a file that says what the library leaves unsaid: names and words.

Their rules, rewards and scorers are the libraries' own. A file imports its library when an environment is made, so that
tags can be listed without it.
"""

"""Reinforcement-learning maths as pure functions of tensors; imports torch and nothing else of ``roll``.

``advantages``, ``rewards``, ``kl``, ``aggregation``, ``losses``, ``off_policy`` and ``filters`` hold the functions;
``registry`` holds the names under which configurations select estimators and losses. Import the modules you use.
"""

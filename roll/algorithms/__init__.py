"""Reinforcement-learning maths as pure functions of tensors; imports torch and of ``roll`` the registry of names.

``advantages``, ``reward_shaping``, ``kl``, ``aggregation``, ``losses``, ``off_policy`` and ``filters`` hold the
functions; ``registry`` holds the names under which configurations select estimators and losses. Import the modules
you use.
"""

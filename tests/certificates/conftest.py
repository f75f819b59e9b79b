import sys
from pathlib import Path

# What is certified is imported by name, here and in the processes that try it.
sys.path.insert(0, str(Path(__file__).parent))

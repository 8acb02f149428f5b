"""Stories that other products' users told of their failures, as this one must live them.

Each test's docstring begins with the story's number.
"""

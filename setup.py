"""The one thing pyproject.toml cannot say: conf/, at the top of the tree, is the folder minillm/conf of a wheel."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["minillm", "minillm.*"]), "minillm.conf"],
    package_dir={"minillm.conf": "conf"},
    package_data={
        "minillm": ["py.typed"],
        "minillm.conf": ["**/*.yaml"],
        "minillm.data": ["corpus/*"],
        "minillm.evaluation": ["harness/tasks/*.yaml"],
    },
)

"""The driver is C++, so its build needs torch's headers and a compiler."""

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

DRIVER = CppExtension("quipu_bridge._driver", ["quipu_bridge/driver.cpp"])

setup(ext_modules=[DRIVER], cmdclass={"build_ext": BuildExtension})

# expect: LOAD_ERROR
# The reference's module is in another process: there is nothing to import.

from problem import Model


class ModelNew(Model):
    pass

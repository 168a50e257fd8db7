"""The wanted state: public resources as typed values, and the objects that a cluster needs."""

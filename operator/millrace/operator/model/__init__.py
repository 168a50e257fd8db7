"""What there should be: public resources as typed values, and the objects that a cluster needs."""

from duramen.kernel.reference import bound_bodies as bound_bodies

"""What holds for every test: Hypothesis looks at no clock, since that a machine is busy is no defect."""

from hypothesis import HealthCheck, settings

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# SPDX-License-Identifier: Apache-2.0
"""For every test: hypothesis judges behaviour, not how busy the machine is."""

from hypothesis import HealthCheck, settings

settings.register_profile("obmm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("obmm")

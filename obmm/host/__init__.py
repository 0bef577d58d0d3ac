# SPDX-License-Identifier: Apache-2.0
"""What an operator asks of a host: is it ready, what lives here, what did the dead leave."""

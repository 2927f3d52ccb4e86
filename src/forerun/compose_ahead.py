"""What an engine's process is going to need, whatever the model: it imports this before it knows which."""

import forerun.cache.opening
import forerun.chat.templates
import forerun.compose_process
import forerun.models.listed
import forerun.models.preflight
import forerun.models.probe_cache
import forerun.native.calibration
import forerun.native.encoder
import forerun.native.runner
import forerun.structured.compiling  # noqa: F401

"""The service's process with fake model servers and fixed features; everything else is `pipelines.serve_daemon`."""

from __future__ import annotations

import sys

from components.core.home import Home
from components.serving.engines import Choice
from components.serving.stack import LocalStack
from pipelines.serve_daemon import Service, main
from pipelines.serving_state import folder
from pipelines.serving_versions import Servable
from tests.fakes.fake_model_server import FakeEngine


class FakeService(Service):
    """`pilotline serve` without models that can score."""

    def patience(self, served: Servable) -> float:
        """As the home's file `patience` says, where there is one."""
        said = self._home.root / "patience"
        return float(said.read_text()) if said.exists() else super().patience(served)

    def stack(self, served: Servable) -> LocalStack:
        """On fake servers; the fault of every replica started now stands in the home's file `fault`."""
        fault = self._home.root / "fault"
        kind = fault.read_text() if fault.exists() else ""
        return LocalStack(
            recipe=served.recipe,
            home=Home.at(self._home.root),
            run_id=served.run_id,
            training_set=self._link(served),
            service_module="tests.fakes.serving_case",
            choice=Choice(FakeEngine({"canary": kind, "stable": kind}), "fake"),
            port=self._port,
            place=folder(self._home),
        )


if __name__ == "__main__":
    sys.exit(main(service=FakeService))

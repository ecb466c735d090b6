"""The manifests of `deploy/kubernetes` are valid, and fit the image, the settings and the app."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from app.settings import Settings, secret_files, unknown_variables
from tests.commands import settings_from

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "deploy" / "kubernetes"
GUIDE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")


def documents(path: Path) -> list[Any]:
    """Return the documents of a file."""
    return list(YAML(typ="safe").load_all(path))


(KUSTOMIZATION,) = documents(FOLDER / "kustomization.yaml")


def rendered() -> Iterator[Any]:
    """Yield each object as kustomize sends it to the cluster."""
    images = {
        image["name"]: f"{image['name']}:{image['newTag']}" for image in KUSTOMIZATION["images"]
    }
    for name in KUSTOMIZATION["resources"]:
        for found in documents(FOLDER / name):
            if found["kind"] != "Namespace":
                found["metadata"]["namespace"] = KUSTOMIZATION["namespace"]
            for container in pod(found).get("containers", ()):
                container["image"] = images[container["image"]]
            yield found


def pod(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod of an object, empty if it has none."""
    spec: dict[str, Any] = found.get("spec", {}).get("template", {}).get("spec", {})
    return spec


OBJECTS = list(rendered())
NAMES = [f"{found['kind']}/{found['metadata']['name']}" for found in OBJECTS]
PODS = {name: pod(found) for name, found in zip(NAMES, OBJECTS, strict=True) if pod(found)}
API, WORKER, MIGRATE = (
    "Deployment/context-service-api",
    "Deployment/context-service-worker",
    "Job/context-service-migrate",
)


def named(name: str) -> Any:
    """Return the object of a kind and name."""
    return OBJECTS[NAMES.index(name)]


def environment(name: str) -> dict[str, str]:
    """Return the environment of a pod's container."""
    (container,) = PODS[name]["containers"]
    assert container["envFrom"] == [{"configMapRef": {"name": "context-service"}}]
    own = {entry["name"]: entry["value"] for entry in container.get("env", ())}
    return {**named("ConfigMap/context-service")["data"], **own}


def settings(name: str, folder: Path) -> Settings:
    """Return the settings of a pod, whose secrets are in a folder."""
    environ = environment(name)
    for variable in secret_files().values():
        if variable in environ:
            secret = folder / Path(environ[variable]).name
            secret.write_text("postgresql://context:word@db/context_service\n", "utf-8")
            environ[variable] = str(secret)
    return settings_from(environ)


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@pytest.mark.parametrize("found", OBJECTS, ids=NAMES)
def test_each_object_is_valid(found: dict[str, Any], version: str) -> None:
    """The schemas of Kubernetes accept it, without any field that they do not know."""
    import kubernetes_validate  # two seconds, which each of the suite's processes would take

    kubernetes_validate.validate(found, version, strict=True)


@pytest.mark.parametrize("name", PODS)
def test_every_variable_is_a_setting(name: str, tmp_path: Path) -> None:
    """The service takes all that is set, and finds the database in files of the secret."""
    assert unknown_variables(environment(name)) == []
    found = settings(name, tmp_path)
    assert found.database_url == found.direct_database_url
    assert found.database_url is not None


@pytest.mark.parametrize("name", PODS)
def test_secrets_are_files_that_the_guide_creates(name: str) -> None:
    """Each file is in the mounted secret, and the guide names the key it has there."""
    (container,) = PODS[name]["containers"]
    (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "secrets")
    files = [Path(environment(name)[v]) for v in secret_files().values() if v in environment(name)]
    assert {str(file.parent) for file in files} == {mount["mountPath"]}
    created = re.findall(r"--from-(?:literal|file)=([a-z-]+)=", GUIDE)
    assert {file.name for file in files} <= set(created)
    assert not secret_files().keys() & {
        key.removeprefix("CONTEXT_").lower() for key in environment(name)
    }

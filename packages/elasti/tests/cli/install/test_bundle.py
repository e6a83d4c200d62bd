"""What an installation consists of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from elasti.api.parsing import SettingsError
from elasti.cli.install.bundle import as_text, bundle
from elasti.cli.install.choices import (
    OPTIONS_ANNOTATION,
    PROGRAMS,
    ChoiceError,
    Choices,
    Program,
)
from elasti.cli.install.flags import choices_of, merged, read_program_variables, written
from elasti.cli.install.inventory import read_options
from elasti.cli.install.operator_policy import policy_spec
from elasti.cli.main import main
from elasti.operator.autoscalers import AUTOSCALERS
from elasti.operator.settings import OperatorSettings
from elasti.resolver.settings import ResolverSettings

CLUSTERWIDE = Choices()
NAMESPACED = Choices(namespaced=True, watch_namespaces=("shop", "blog"))
WRITES = {"create", "update", "patch", "delete"}
EVERY = [
    CLUSTERWIDE,
    NAMESPACED,
    Choices(authentication=False, namespace="scale", operator_replicas=1, resolver_replicas=5),
    Choices(with_definition=False, with_namespace=False, watch_namespaces=("shop",)),
    Choices(tls="off"),
    Choices(tls="required", tls_secret="of-cert-manager"),
    Choices(enrolment=True),
]


def objects(choices: Choices, kind: str = "") -> list[dict[str, Any]]:
    return [part.obj for part in bundle(choices) if kind in ("", part.obj["kind"])]


def pod_of(choices: Choices, program: Program) -> dict[str, Any]:
    (found,) = (
        obj
        for obj in objects(choices, "Deployment")
        if obj["metadata"]["name"] == f"elasti-{program.value}"
    )
    return found["spec"]["template"]["spec"]


def variables_of(choices: Choices, program: Program) -> dict[str, str]:
    (container,) = pod_of(choices, program)["containers"]
    return {item["name"]: item.get("value", "") for item in container["env"]}


def run(*args: str):
    return CliRunner().invoke(main, ["manifests", *args])


@pytest.mark.parametrize("choices", EVERY)
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_has_probes_resources_and_few_rights(choices: Choices, program: Program):
    pod = pod_of(choices, program)
    (container,) = pod["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        ports = {port["name"] for port in container["ports"]}
        assert container[probe]["httpGet"]["port"] in ports
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert container["resources"]["limits"].keys() == {"memory"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["command"] == ["elasti", program.value]
    assert container["image"] == choices.image


@pytest.mark.parametrize("choices", EVERY)
def test_no_right_is_for_everything(choices: Choices):
    for role in (*objects(choices, "Role"), *objects(choices, "ClusterRole")):
        for rule in role.get("rules", ()):
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            if "secrets" in rule["resources"]:
                # Its own certificates: by name, and without `create`, which no name can bind.
                assert (role["kind"], role["metadata"]["name"]) == (
                    "Role",
                    "elasti-operator-leader",
                )
                assert (rule["resourceNames"], rule["verbs"]) == (["elasti-tls"], ["get", "update"])


@pytest.mark.parametrize("choices", EVERY)
def test_what_is_bound_exists_and_goes_to_our_accounts_only(choices: Choices):
    roles = {
        (obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        for obj in objects(choices)
    }
    accounts = {obj["metadata"]["name"] for obj in objects(choices, "ServiceAccount")}
    for binding in (*objects(choices, "RoleBinding"), *objects(choices, "ClusterRoleBinding")):
        role = binding["roleRef"]
        where = binding["metadata"].get("namespace", "")
        assert (role["kind"], where, role["name"]) in roles
        for subject in binding["subjects"]:
            assert subject["namespace"] == choices.namespace
            assert subject["name"] in accounts


def test_a_namespaced_installation_has_nothing_that_is_the_clusters_but_the_definition():
    kinds = {obj["kind"] for obj in objects(NAMESPACED) if "namespace" not in obj["metadata"]}
    assert kinds == {"Namespace", "CustomResourceDefinition"}
    less = Choices(
        namespaced=True,
        watch_namespaces=("shop",),
        with_definition=False,
        with_namespace=False,
    )
    assert {obj["metadata"]["namespace"] for obj in objects(less)} == {"elasti", "shop"}


@pytest.mark.parametrize("choices", EVERY)
def test_deployments_services_budgets_and_policies_choose_the_same_pods(choices: Choices):
    for program in PROGRAMS:
        name = f"elasti-{program.value}"
        labels = next(
            obj["spec"]["template"]["metadata"]["labels"]
            for obj in objects(choices, "Deployment")
            if obj["metadata"]["name"] == name
        )
        chosen = [
            obj["spec"].get("podSelector", obj["spec"].get("selector"))
            for obj in objects(choices)
            if obj["metadata"].get("labels", {}).get("app") == name and "spec" in obj
        ]
        # A Service's selector is a plain mapping, the others' have matchLabels.
        wanted = [item.get("matchLabels", item) for item in chosen]
        assert len(wanted) == 4
        assert all(item.items() <= labels.items() for item in wanted)


def test_services_lead_to_ports_that_containers_have():
    for service in objects(CLUSTERWIDE, "Service"):
        program = Program(service["metadata"]["labels"]["app.kubernetes.io/component"])
        (container,) = pod_of(CLUSTERWIDE, program)["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]


@pytest.mark.parametrize("choices", EVERY)
def test_the_programs_understand_their_variables(choices: Choices):
    operator = OperatorSettings.from_env(variables_of(choices, Program.OPERATOR))
    resolver = ResolverSettings.from_env(variables_of(choices, Program.RESOLVER))
    assert operator.operator_namespace == resolver.operator_namespace == choices.namespace
    assert operator.resolver_namespace == choices.namespace
    assert operator.watch_namespaces == resolver.watch_namespaces == choices.watch_namespaces
    assert operator.authenticate == resolver.authenticate == choices.authentication
    assert operator.leader_elect
    names = {obj["metadata"]["name"]: obj for obj in objects(choices, "Service")}
    assert operator.resolver_service in names
    assert resolver.operator_service in names


def test_each_program_has_a_token_for_the_other_and_lets_only_the_other_in():
    for program, other in (
        (Program.OPERATOR, Program.RESOLVER),
        (Program.RESOLVER, Program.OPERATOR),
    ):
        pod = pod_of(CLUSTERWIDE, program)
        (source,) = pod["volumes"][0]["projected"]["sources"]
        token = source["serviceAccountToken"]
        assert token["audience"] == f"elasti-{other.value}"
        mount = pod["containers"][0]["volumeMounts"][0]
        variables = variables_of(CLUSTERWIDE, program)
        name = f"ELASTI_{other.name}_TOKEN_FILE"
        assert variables[name] == f"{mount['mountPath']}/{token['path']}"
        caller = f"system:serviceaccount:elasti:elasti-{other.value}"
        assert variables["ELASTI_ALLOWED_CALLERS"] == caller


def test_without_authentication_there_is_no_token():
    for program in PROGRAMS:
        pod = pod_of(Choices(authentication=False), program)
        assert not any("projected" in volume for volume in pod["volumes"])
        assert not any("TOKEN" in name for name in variables_of(EVERY[2], program))


def test_both_programs_mount_their_certificates_and_not_the_authoritys_key():
    for program in PROGRAMS:
        pod = pod_of(CLUSTERWIDE, program)
        (secret,) = (volume["secret"] for volume in pod["volumes"] if "secret" in volume)
        (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "elasti-tls")
        assert variables_of(CLUSTERWIDE, program)["ELASTI_TLS_DIRECTORY"] == mount["mountPath"]
        assert [item["key"] for item in secret["items"]] == ["ca.crt", "tls.crt", "tls.key"]
        assert (secret["secretName"], secret["optional"]) == ("elasti-tls", True)
    (made,) = objects(CLUSTERWIDE, "Secret")
    assert "data" not in made, "another apply would empty it"
    assert OperatorSettings.from_env(variables_of(CLUSTERWIDE, Program.OPERATOR)).tls_secret
    # A resolver neither makes certificates nor may it read the Secret.
    assert "ELASTI_TLS_SECRET" not in variables_of(CLUSTERWIDE, Program.RESOLVER)


@pytest.mark.parametrize(
    "choices", [Choices(tls="off"), Choices(tls="required", tls_secret="of-cert-manager")]
)
def test_without_certificates_of_its_own_the_operator_has_no_right_on_secrets(choices: Choices):
    assert objects(choices, "Secret") == []
    rules = [rule for role in objects(choices, "Role") for rule in role["rules"]]
    assert not any("secrets" in rule["resources"] for rule in rules)
    for program in PROGRAMS:
        volumes = [
            v["secret"]["secretName"] for v in pod_of(choices, program)["volumes"] if "secret" in v
        ]
        assert volumes == ([choices.tls_secret] if choices.tls_secret else [])
        settings = {n for n in variables_of(choices, program) if n.startswith("ELASTI_TLS")}
        wanted = {"ELASTI_TLS_DIRECTORY", "ELASTI_TLS_REQUIRED"} if choices.tls_secret else set()
        assert settings == wanted


def test_a_resolver_has_more_time_to_leave_than_it_takes_at_most():
    pod = pod_of(CLUSTERWIDE, Program.RESOLVER)
    settings = ResolverSettings()
    assert pod["terminationGracePeriodSeconds"] > settings.drain_timeout


def test_a_rollout_never_has_fewer_pods_than_before():
    for deployment in objects(CLUSTERWIDE, "Deployment"):
        assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_programs_are_drained_one_at_a_time():
    budgets = {
        obj["metadata"]["name"]: obj["spec"] for obj in objects(CLUSTERWIDE, "PodDisruptionBudget")
    }
    for program in PROGRAMS:
        assert budgets[f"elasti-{program.value}"]["maxUnavailable"] == 1


def test_programs_are_spread_without_zones_across_rollouts_and_leave_lost_nodes():
    for program in PROGRAMS:
        pod = pod_of(CLUSTERWIDE, program)
        # A second key would make the scheduler ignore every node that has no zone.
        (spread,) = pod["topologySpreadConstraints"]
        assert spread["topologyKey"] == "kubernetes.io/hostname"
        assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
        assert spread["matchLabelKeys"] == ["pod-template-hash"]
        zones = pod["affinity"]["podAntiAffinity"]
        assert [*zones] == ["preferredDuringSchedulingIgnoredDuringExecution"]
        stays = {item["key"]: item["tolerationSeconds"] for item in pod["tolerations"]}
        assert stays == {
            "node.kubernetes.io/not-ready": 10,
            "node.kubernetes.io/unreachable": 10,
        }


def test_programs_have_a_priority_where_the_installation_may_be_cluster_wide():
    (made,) = objects(CLUSTERWIDE, "PriorityClass")
    kinds = [part.obj["kind"] for part in bundle(CLUSTERWIDE)]
    assert kinds.index("PriorityClass") < kinds.index("Deployment")
    for program in PROGRAMS:
        assert pod_of(CLUSTERWIDE, program)["priorityClassName"] == made["metadata"]["name"]
        assert "priorityClassName" not in pod_of(NAMESPACED, program)
    assert not objects(NAMESPACED, "PriorityClass")


def test_programs_listen_on_every_address_unless_a_cluster_says_which():
    for program, settings in (
        (Program.OPERATOR, OperatorSettings),
        (Program.RESOLVER, ResolverSettings),
    ):
        variables = variables_of(CLUSTERWIDE, program)
        assert settings.from_env(variables).host is None
        told = {**variables, "ELASTI_LISTEN_ADDRESS": "127.1.2.3"}
        assert settings.from_env(told).host == "127.1.2.3"
        exact = {**told, f"ELASTI_{program.name}_HOST": "127.9.9.9"}
        assert settings.from_env(exact).host == "127.9.9.9"


def test_enrolment_has_its_rights_definition_and_policy_only_if_enabled():
    def named(choices: Choices) -> set[str]:
        return {f"{obj['kind']} {obj['metadata']['name']}" for obj in objects(choices)}

    assert named(Choices(enrolment=True)) - named(CLUSTERWIDE) == {
        "CustomResourceDefinition elastitemplates.elasti.truefoundry.com",
        "ClusterRole elasti-operator-enrolment",
        "ClusterRoleBinding elasti-operator-enrolment",
        "ValidatingAdmissionPolicy elasti-may-enrol",
        "ValidatingAdmissionPolicyBinding elasti-may-enrol",
    }
    for choices, enrols in ((CLUSTERWIDE, False), (Choices(enrolment=True), True)):
        verbs = {
            verb
            for role in objects(choices, "ClusterRole")
            if role["metadata"]["name"].startswith("elasti-operator")
            for rule in role.get("rules", ())
            if "elastiservices" in rule["resources"]
            for verb in rule["verbs"]
        }
        assert ({"create", "delete"} <= verbs) is enrols
        assert variables_of(choices, Program.OPERATOR).get("ELASTI_ENROLMENT", "") == (
            "true" if enrols else ""
        )


def test_the_operators_policy_knows_enrolled_objects_only_if_enabled():
    def allowed(choices: Choices) -> list[str]:
        (policy,) = (
            obj
            for obj in objects(choices, "ValidatingAdmissionPolicy")
            if obj["metadata"]["name"] == "elasti-operator-writes"
        )
        rules = [rule["expression"] for rule in policy["spec"]["validations"]]
        return [rule for rule in rules if "elasti.truefoundry.com/enrolled" in rule]

    assert allowed(CLUSTERWIDE) == []
    assert len(allowed(Choices(enrolment=True))) == 1


def test_data_ports_are_open_and_admin_ports_are_not():
    policies = {
        obj["metadata"]["name"]: obj["spec"] for obj in objects(CLUSTERWIDE, "NetworkPolicy")
    }
    data, admin = policies["elasti-resolver"]["ingress"]
    assert "from" not in data
    assert data["ports"] == [{"protocol": "TCP", "port": 9000, "endPort": 65535}]
    assert admin["from"][0] == {"podSelector": {"matchLabels": {"app": "elasti-operator"}}}
    (wake,) = policies["elasti-operator"]["ingress"]
    assert wake["from"][0] == {"podSelector": {"matchLabels": {"app": "elasti-resolver"}}}


def lets_out(choices: Choices, program: Program, port: int, *, to_pod: bool = False) -> bool:
    """Whether a program may open a TCP connection, as NetworkPolicies are read."""
    (spec,) = (
        obj["spec"]
        for obj in objects(choices, "NetworkPolicy")
        if obj["metadata"]["name"] == f"elasti-{program}"
    )
    if "Egress" not in spec["policyTypes"]:
        return True
    return any(
        (to_pod or "to" not in rule)
        and any(
            allowed["protocol"] == "TCP" and allowed["port"] == port
            for allowed in rule.get("ports", [{"protocol": "TCP", "port": port}])
        )
        for rule in spec["egress"]
    )


def test_programs_may_call_what_they_need_and_nothing_else():
    chosen = Choices(egress_ports=(8428,))
    for program in PROGRAMS:
        # Pods that wake or are read, each other, a Prometheus in the cluster: at any port.
        assert all(lets_out(chosen, program, port, to_pod=True) for port in (1, 8013, 9090, 65535))
        # DNS, the API server behind a Service and by itself, and what was chosen.
        assert all(lets_out(chosen, program, port) for port in (53, 443, 6443, 8428))
        # Such as a cloud's metadata server, and databases outside.
        assert not any(lets_out(chosen, program, port) for port in (22, 80, 5432, 8080, 10255))
        assert lets_out(Choices(egress_policies=False), program, 80)
    for port in (9090, 10250):
        assert lets_out(chosen, Program.OPERATOR, port)
        assert not lets_out(chosen, Program.RESOLVER, port)
    assert not lets_out(Choices(kubelet_stats=False), Program.OPERATOR, 10250)


def test_the_shared_port_is_open_where_it_was_asked_for_only():
    for choices, expected in ((Choices(), False), (Choices(shared_port=True), True)):
        for kind in ("Service", "NetworkPolicy", "Deployment"):
            assert ("8012" in str(objects(choices, kind))) is expected, kind
    (namespace,) = objects(Choices(), "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_given_variables_win_over_ours_and_may_name_what_the_pod_knows():
    given = {"POD_IP": "10.0.0.1", "ELASTI_OPERATOR_URL": "http://$(POD_IP)"}
    choices = Choices(variables={Program.RESOLVER: given})
    (container,) = pod_of(choices, Program.RESOLVER)["containers"]
    names = [item["name"] for item in container["env"]]
    assert len(names) == len(set(names))
    assert variables_of(choices, Program.RESOLVER)["POD_IP"] == "10.0.0.1"
    own = [item["name"] for item in container["env"] if "valueFrom" in item]
    assert names[: len(own)] == own


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"namespace": "Bad_Name"}, "--namespace 'Bad_Name'"),
        ({"watch_namespaces": ("-",)}, "--watch-namespace '-'"),
        ({"image": ""}, "--image"),
        ({"namespaced": True}, "--watch-namespace"),
        ({"namespaced": True, "watch_namespaces": ("a",), "enrolment": True}, "--enrolment"),
    ],
)
def test_choices_that_do_not_fit_are_refused_with_the_option(wrong: dict[str, Any], words: str):
    with pytest.raises(ChoiceError, match=words):
        Choices(**wrong)


@given(st.text() | st.from_regex(r"(operator|resolver):[A-Z_]{1,4}=.*", fullmatch=True))
def test_any_text_is_a_variable_or_is_refused(text: str):
    try:
        found = read_program_variables([text])
    except ChoiceError:
        return
    ((program, pair),) = found.items()
    ((name, value),) = pair.items()
    assert text == f"{program}:{name}={value}"


def test_the_last_value_of_a_variable_wins():
    assert read_program_variables(["operator:A=1", "operator:A=2=3"]) == {
        Program.OPERATOR: {"A": "2=3"}
    }


# The command


def test_yaml_and_json_say_the_same():
    documents = list(yaml.safe_load_all(run().output))
    assert documents == objects(CLUSTERWIDE)
    listed = yaml.safe_load(run("-o", "json").output)
    assert listed["kind"] == "List"
    assert listed["items"] == documents


def test_every_document_says_what_it_is_for():
    for document in as_text(bundle(CLUSTERWIDE), "yaml").split("---\n")[1:]:
        assert document.startswith("# ")


def test_flags_become_choices():
    result = run(
        "-n", "scale", "--image", "r/e:2", "--namespaced", "--watch-namespace", "a",
        "--watch-namespace", "b", "--watch-namespace", "a", "--operator-replicas", "3",
        "--resolver-replicas", "4", "--no-authentication", "--no-crd", "--no-namespace",
        "--env", "operator:POLLING_INTERVAL=5s",
    )  # fmt: skip
    expected = Choices(
        namespace="scale",
        image="r/e:2",
        namespaced=True,
        watch_namespaces=("a", "b"),
        operator_replicas=3,
        resolver_replicas=4,
        authentication=False,
        with_definition=False,
        with_namespace=False,
        variables={Program.OPERATOR: {"POLLING_INTERVAL": "5s"}},
    )
    assert result.output == as_text(bundle(expected), "yaml")


@pytest.mark.parametrize(
    "wrong",
    [
        ["--namespaced"],
        ["--env", "A=b"],
        ["--env", "sidecar:A=b"],
        ["-n", "No"],
        ["--image", ""],
        ["--operator-replicas", "0"],
        ["--tls", "maybe"],
        ["--tls-secret", "No/Name"],
        ["--tls-secret", "elasti-tls"],
        ["--resolver-replicas", "many"],
        ["-o", "table"],
        ["more"],
    ],
)
def test_a_wrong_call_is_a_usage_error(wrong: list[str]):
    result = run(*wrong)
    assert result.exit_code == 2
    assert "Error: " in result.output


def test_a_variable_that_a_program_would_refuse_is_refused_before():
    result = run("--env", "operator:POLLING_INTERVAL=1s", "--env", "resolver:QUEUE_SIZE=none")
    assert result.exit_code == 2
    assert "resolver:QUEUE_SIZE" in result.output
    with pytest.raises(SettingsError):
        ResolverSettings.from_env({"QUEUE_SIZE": "none"})


def rendered(*args: str) -> list[dict[str, Any]]:
    result = run("-o", "json", *args)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)["items"]


PLACED = (
    "--image-pull-secret=registry",
    "--node-selector=pool=infra",
    "--toleration=dedicated=infra:NoSchedule",
    "--toleration=spot",
)


def test_pods_run_where_the_user_says_and_pull_with_the_users_secret(tmp_path: Path):
    affinity: dict[str, Any] = {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}
    }
    (tmp_path / "affinity.yaml").write_text(yaml.safe_dump(affinity))
    placed = (*PLACED, f"--affinity={tmp_path / 'affinity.yaml'}")
    deployments = [obj for obj in rendered(*placed) if obj["kind"] == "Deployment"]
    assert len(deployments) == 2
    for deployment in deployments:
        pod = deployment["spec"]["template"]["spec"]
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert pod["nodeSelector"] == {"pool": "infra"}
        assert pod["affinity"] == affinity
        assert pod["tolerations"][-2:] == [
            {"key": "dedicated", "operator": "Equal", "value": "infra", "effect": "NoSchedule"},
            {"key": "spot", "operator": "Exists"},
        ]


def test_labels_are_on_every_object_and_pod_and_select_nothing():
    for obj in rendered("--label=team=edge"):
        if obj["kind"] == "CustomResourceDefinition":
            continue  # it belongs to no one installation
        assert obj["metadata"]["labels"]["team"] == "edge"
        if obj["kind"] == "Deployment":
            assert obj["spec"]["template"]["metadata"]["labels"]["team"] == "edge"
            assert "team" not in obj["spec"]["selector"]["matchLabels"]


def test_resources_are_given_by_program_over_the_defaults():
    choices = Choices(resources={Program.RESOLVER: {"limits.memory": "2Gi", "limits.cpu": "2"}})
    assert choices.resources_of(Program.RESOLVER) == {
        "requests": {"cpu": "100m", "memory": "128Mi"},
        "limits": {"memory": "2Gi", "cpu": "2"},
    }
    assert choices.resources_of(Program.OPERATOR)["limits"] == {"memory": "512Mi"}


def test_a_variable_from_a_secret_stands_before_those_that_may_name_it():
    choices = Choices(
        variables={Program.OPERATOR: {"A": "$(B)", "C": "plain"}},
        secret_variables={Program.OPERATOR: {"B": "login/password", "C": "login/c"}},
    )
    (container,) = pod_of(choices, Program.OPERATOR)["containers"]
    names = [item["name"] for item in container["env"]]
    assert names.index("B") < names.index("A")
    assert len(names) == len({*names})
    (found,) = (item for item in container["env"] if item["name"] == "B")
    assert found["valueFrom"] == {"secretKeyRef": {"name": "login", "key": "password"}}


def test_the_dashboard_has_no_rights_and_no_token():
    assert "elasti-dashboard" not in as_text(bundle(CLUSTERWIDE), "yaml")
    choices = Choices(dashboard_hosts=("a.example.com",))
    for obj in objects(choices):
        assert "elasti-dashboard" not in [one["name"] for one in obj.get("subjects", ())]
    pod = pod_of(choices, Program.DASHBOARD)
    assert pod["automountServiceAccountToken"] is False
    assert pod["volumes"] == [{"name": "ca", "configMap": {"name": "kube-root-ca.crt"}}]
    assert "--host=a.example.com" in pod["containers"][0]["command"]
    operator = pod_of(CLUSTERWIDE, Program.OPERATOR)
    assert pod["securityContext"] == operator["securityContext"]
    own, known = pod["containers"][0], operator["containers"][0]
    assert own["securityContext"] == known["securityContext"]


def test_an_autoscaler_takes_the_place_of_the_number_of_resolvers():
    scaled = rendered("--resolver-autoscaling=2-6@60")
    (autoscaler,) = (obj for obj in scaled if obj["kind"] == "HorizontalPodAutoscaler")
    assert autoscaler["spec"]["scaleTargetRef"]["name"] == "elasti-resolver"
    assert (autoscaler["spec"]["minReplicas"], autoscaler["spec"]["maxReplicas"]) == (2, 6)
    replicas = {
        obj["metadata"]["name"]: obj["spec"].get("replicas")
        for obj in scaled
        if obj["kind"] == "Deployment"
    }
    assert replicas == {"elasti-operator": 2, "elasti-resolver": None}


EVERY_OPTION = (
    *PLACED, "--label=team=edge", "--resources=operator:limits.memory=1Gi", "--env=operator:A=1",
    "--env-secret=operator:B=login/password", "--resolver-autoscaling=2-6", "--namespaced",
    "--watch-namespace=shop", "--no-authentication", "--no-crd", "--no-namespace", "--image=x:1",
    "--operator-replicas=3", "--resolver-replicas=4", "--tls=required", "--tls-secret=own",
)  # fmt: skip


def test_noted_options_give_the_same_objects_again():
    first = rendered(*EVERY_OPTION)
    (noted,) = (
        obj["metadata"]["annotations"][OPTIONS_ANNOTATION]
        for obj in first
        if obj["metadata"]["name"] == "elasti-operator" and obj["kind"] == "Deployment"
    )
    options = read_options(noted)
    assert {*written(options)} >= {
        "--toleration spot",
        "--resolver-autoscaling 2-6@70",
        "--tls required",
    }
    again = [part.obj for part in bundle(choices_of("elasti", merged(options, {})))]
    assert again == first


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--resources=operator:limits.memory=80Mi", "at least 256Mi"),
        ("--resources=operator:limits.cpu=200m", "at least 1"),
        ("--resources=operator:memory=1Gi", "is not a resource"),
        ("--resources=resolver:limits.memory=lots", "is not an amount"),
        ("--resources=memory=1Gi", "such as operator:limits.memory=1Gi"),
        ("--toleration=a b", "KEY[=VALUE][:EFFECT]"),
        ("--label=app=web", "choose another name"),
        ("--node-selector=infra", "is not KEY=VALUE"),
        ("--env-secret=operator:A=login", "SECRET/KEY"),
        ("--resolver-autoscaling=6", "such as 2-6@70"),
        ("--resolver-autoscaling=6-2", "is not a range"),
        ("--affinity=/nowhere/affinity.yaml", "cannot be read"),
        ("--dashboard=http://a.example.com", "not a host name"),
        ("--port-range=20000", "not FIRST-LAST"),
        ("--port-range=8000-20000", "9000-65535"),
        ("--port-range=20000-65536", "9000-65535"),
        ("--port-range=9000-9050", "51 ports"),
        ("--port-range=20000-60000", "40001 ports"),
        ("--env=operator:ELASTI_PORT_RANGE=20000-30000", "--port-range"),
    ],
)
def test_an_option_that_does_not_fit_is_refused_with_the_remedy(option: str, said: str):
    result = run(option)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_the_operators_policy_binds_every_kind_that_an_autoscaler_lets_it_write():
    """A kind that is not matched, or has no rule, could be rewritten with a stolen token."""
    spec = policy_spec("user", (20000, 29999))
    matched = {
        (rule["apiGroups"][0], kind)
        for rule in spec["matchConstraints"]["resourceRules"]
        for kind in rule["resources"]
    }
    ruled = " ".join(entry["expression"] for entry in spec["validations"])
    written = {
        (rule.group, resource)
        for autoscaler in AUTOSCALERS
        for rule in autoscaler.rules
        for resource in rule.resources
        if WRITES & set(rule.verbs)
    }
    assert written
    assert written <= matched
    assert all(f"variables.kind != '{resource}'" in ruled for _, resource in written)

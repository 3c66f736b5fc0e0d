"""A data admission: data are bounded in versions, as Sample Factory's max_policy_lag bounds them.

stellaris-jax train plugins=[data_admission.py] system.actors=independent system.data_admission=within_versions
"""

import stellaris_jax as sj


@sj.register.data_admission("within_versions")
class WithinVersions(sj.DataAdmission):
    """Bound in versions: waiting fragments whose first version is older are dropped; newer ones are learned first."""

    versions: int = sj.knob(40, "versions that a fragment's first segment may be behind", within="[1, inf)")

    def evicts(self, view):
        return [fragment for fragment in view.waiting if view.clock - fragment.versions[0] > self.versions]

    def selects(self, view):
        return sorted(view.waiting, key=lambda fragment: -fragment.versions[0])[: view.shards]

# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# The rows of check.sh: quick or full, model, name, options. A broken rule is run in a configuration that
# finds it.

correct quick slot "get by shm" -DREADER=GET
correct quick slot "view" -DREADER=VIEW
correct quick slot "pin by the node" -DREADER=PIN
correct quick slot "get by shm, put by tcp" -DREADER=GET -DWRITER=TCP
correct full slot "view, put by tcp" -DREADER=VIEW -DWRITER=TCP
correct full slot "pin by the node, put by tcp" -DREADER=PIN -DWRITER=TCP

broken quick slot "no fence before a put's bytes" -DREADER=GET -DNO_FENCE_BEFORE_PUT
broken quick slot "no fence after a put's bytes" -DREADER=GET -DNO_FENCE_AFTER_PUT
broken quick slot "no fence after a get's bytes" -DREADER=GET -DNO_FENCE_AFTER_GET
broken full slot "get: first look at gen relaxed" -DREADER=GET -DGET_STARTS_RELAXED
broken full slot "get: gen not compared again" -DREADER=GET -DGEN_NOT_COMPARED_AGAIN
broken full slot "node changes gen relaxed" -DREADER=GET -DGEN_RELAXED
broken quick slot "gen changes at freeing only" -DREADER=VIEW -DGEN_AT_FREEING
broken quick slot "pins looked at before gen changes" -DREADER=PIN -DPINS_BEFORE_GEN
broken full slot "hazards looked at before gen changes" -DREADER=VIEW -DPINS_BEFORE_GEN
broken full slot "reuse under a view" -DREADER=VIEW -DREUSE_AT_ONCE
broken full slot "reuse under a pin" -DREADER=PIN -DREUSE_AT_ONCE
broken full slot "hazard announced relaxed" -DREADER=VIEW -DANNOUNCE_RELAXED
broken full slot "pin announced relaxed" -DREADER=PIN -DANNOUNCE_RELAXED
broken full slot "hazard beyond the used entries" -DREADER=VIEW -DUSED_AFTER_GEN
broken full slot "hazard dropped relaxed" -DREADER=VIEW -DDROP_RELAXED
broken full slot "pin dropped relaxed" -DREADER=PIN -DDROP_RELAXED
broken quick slot "reclaim before the writer is known gone" -DREADER=GET -DRECLAIM_AT_DISCONNECT
broken full slot "commit does not look for writers" -DWRITER=TCP -DCOMMIT_IGNORES_WRITERS
broken full slot "writer looks at the session first" -DWRITER=TCP -DSESSION_BEFORE_PIN
broken full slot "writer does not look at the session" -DWRITER=TCP -DSESSION_IGNORED
broken full slot "reuse under a writer" -DWRITER=TCP -DREUSE_AT_ONCE

-- Has wrk send a head as it is given, in its order; its own -H sorts fields by hash.
function init(args)
   wrk.format = function() return args[1] end
end
